"""What the disk gives to plain threads with preadv: the bound that the loader is held against."""

import mmap
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtp_daemon.errors import EnvironmentFailure
from mtp_daemon.front.disk_probe import open_past_cache

ALIGNMENT = 4096


@dataclass(frozen=True)
class Read:
    """What came, and how long it took."""

    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / self.seconds


def read_pieces(
    files: Sequence[Path], read_bytes: int, threads: int, direct: bool, total_bytes: int, seed: int = 0
) -> Read:
    """`threads` threads read pieces of `read_bytes` at random aligned offsets, no two alike, `total_bytes` in all.

    `direct` bypasses the page cache (O_DIRECT; F_NOCACHE on macOS, which does not evict what is cached already).
    Raises EnvironmentFailure where the files are smaller than one read or the file system refuses.
    """
    read_bytes = -(-read_bytes // ALIGNMENT) * ALIGNMENT
    places = [(f, at) for f, path in enumerate(files) for at in range(0, path.stat().st_size - read_bytes, read_bytes)]
    if not places:
        raise EnvironmentFailure(f"{files[0]} is smaller than one read of {read_bytes} bytes")
    random.Random(seed).shuffle(places)
    places = places[: max(threads, total_bytes // read_bytes)]
    descriptors = [_open(path, direct) for path in files]
    faults: list[OSError] = []

    def read(mine: Sequence[tuple[int, int]]) -> None:
        buffer = mmap.mmap(-1, read_bytes)  # page-aligned, as O_DIRECT wants
        try:
            for file, offset in mine:
                if os.preadv(descriptors[file], [buffer], offset) != read_bytes:
                    raise OSError(f"{files[file]}: short read at {offset}")
        except OSError as error:
            faults.append(error)

    workers = [threading.Thread(target=read, args=(places[i::threads],)) for i in range(threads)]
    started = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - started
    for descriptor in descriptors:
        os.close(descriptor)
    if faults:
        raise EnvironmentFailure(f"reading failed: {faults[0]}")
    return Read(len(places) * read_bytes, seconds)


def drop_page_cache(files: Sequence[Path]) -> None:
    """Ask the kernel to forget these files' pages (Linux; elsewhere the caller must read more than memory holds)."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _open(path: Path, direct: bool) -> int:
    return open_past_cache(path) if direct else os.open(path, os.O_RDONLY)
