"""The seam between the readers and the disk: `os.preadv`, or one that is slow or faulty on purpose.

For tests and benchmarks only. A token bucket slows this machine's disk to what another one gives.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Preadv = Callable[[int, Sequence[memoryview], int], int]


@dataclass(frozen=True)
class ShimSettings:
    """What is wrong with the disk. Reads are numbered from 1.

    `short` bytes at most come back from one call; `eio` are the numbers of the reads that fail; `eio_from` fails all
    reads from that number on; `refuse_above` is the size from which a call fails with EINVAL, as macOS's does at
    2 GiB; `delay_s` is slept in every call; `gbps` is the bandwidth in 1e9 bytes a second, 0 for the disk's own.
    """

    short: int = 0
    eio: tuple[int, ...] = ()
    eio_from: int = 0
    refuse_above: int = 0
    delay_s: float = 0.0
    gbps: float = 0.0

    @property
    def plain(self) -> bool:
        return self == ShimSettings()


def make_preadv(settings: ShimSettings) -> Preadv:
    """`os.preadv` itself when nothing is asked for."""
    return os.preadv if settings.plain else ReadShim(settings)


class ReadShim:
    """A `preadv` with the settings' faults; any thread may call it."""

    def __init__(self, settings: ShimSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self.calls = 0
        self._free_at = 0.0  # when the bucket has bytes again

    def __call__(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        s = self._settings
        with self._lock:
            self.calls += 1
            number = self.calls
        if s.delay_s:
            time.sleep(s.delay_s)
        if number in s.eio or 0 < s.eio_from <= number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if s.refuse_above and sum(b.nbytes for b in buffers) >= s.refuse_above:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        n = os.preadv(fd, buffers, offset)
        if s.short:  # what came beyond is read again: O_DIRECT would refuse to be asked for so little
            n = min(n, s.short)
        if s.gbps:
            self._pay(n)
        return n

    def _pay(self, nbytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + nbytes / (self._settings.gbps * 1e9)
            wait = self._free_at - now
        time.sleep(wait)
