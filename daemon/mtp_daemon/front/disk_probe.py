"""A quick look at how fast the disk gives random pieces of a file."""

import contextlib
import mmap
import os
import random
import threading
import time
from pathlib import Path

_PIECE = 1 << 20
_READERS = 4
_PROBE_S = 0.2


def bytes_per_second(file: Path, piece: int = _PIECE) -> float | None:
    """Measured with four readers that bypass the page cache; None where that is impossible or the file too small."""
    pieces = file.stat().st_size // piece
    if pieces < 4 * _READERS:
        return None
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
    except OSError:
        return None
    try:
        if not hasattr(os, "O_DIRECT"):
            import fcntl

            fcntl.fcntl(fd, getattr(fcntl, "F_NOCACHE", 48), 1)
        return _measure(fd, pieces, piece)
    finally:
        os.close(fd)


def _measure(fd: int, pieces: int, piece: int) -> float | None:
    read = [0] * _READERS
    begun = time.monotonic()

    def reader(index: int) -> None:
        draw = random.Random(index)
        # An anonymous map is page-aligned, which reading past the cache needs.
        with contextlib.suppress(OSError), mmap.mmap(-1, piece) as buffer:
            while time.monotonic() < begun + _PROBE_S:
                read[index] += os.preadv(fd, [buffer], draw.randrange(pieces) * piece)

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(_READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(read) / (time.monotonic() - begun) if all(read) else None
