"""A quick look at how fast the disk gives random pieces of a file."""

import contextlib
import fcntl
import mmap
import os
import random
import sys
import threading
import time
from pathlib import Path

_PIECE = 1 << 20
_READERS = 4
_PROBE_S = 0.2
# A disk that has not answered a single read by then is not worth a figure, nor the front's time.
_PATIENCE_S = 2.0


def bytes_per_second(file: Path, piece: int = _PIECE) -> float | None:
    """Measured with four readers that bypass the page cache; None where that is impossible, the file is too small or
    the disk does not answer.
    """
    pieces = file.stat().st_size // piece
    if pieces < 4 * _READERS:
        return None
    try:
        fd = open_past_cache(file)
    except OSError:
        return None
    rate, ended = _measure(fd, pieces, piece)
    if ended:  # a read that hangs keeps its descriptor: another file must not get that number
        os.close(fd)
    return rate


def open_past_cache(path: Path) -> int:
    """A descriptor whose reads bypass the page cache (O_DIRECT; F_NOCACHE on macOS). Raises OSError."""
    if sys.platform == "darwin":
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)
        return fd
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)


def _measure(fd: int, pieces: int, piece: int) -> tuple[float | None, bool]:
    """Bytes a second, and whether every reader has ended."""
    read = [0] * _READERS
    begun = time.monotonic()

    def reader(index: int) -> None:
        draw = random.Random(index)
        # An anonymous map is page-aligned, which reading past the cache needs.
        with contextlib.suppress(OSError), mmap.mmap(-1, piece) as buffer:
            while time.monotonic() < begun + _PROBE_S:
                read[index] += os.preadv(fd, [buffer], draw.randrange(pieces) * piece)

    threads = [threading.Thread(target=reader, args=(i,), daemon=True) for i in range(_READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, begun + _PATIENCE_S - time.monotonic()))
    ended = not any(thread.is_alive() for thread in threads)
    return (sum(read) / (time.monotonic() - begun) if ended and all(read) else None), ended
