"""Cold reads of packed experts through the loader's readers, beside plain threads on the same file.

    python tests/bench/bench_loader_reads.py [--experts 400] [--expert-bytes 1769472] [--threads 8] [--rounds 5]

Plain threads call `os.preadv` on a descriptor opened with O_DIRECT (macOS: F_NOCACHE), one record at a time into their
own aligned buffer: what the disk gives. The loader reads the same records, in the same random order, into a pool
region: rows of nine planes, checksums and NaN checks included (each expert's first read) and again without. Measured
in turn, medians with minimum and maximum. The goal is 0.85 of the plain threads. The file is written in the working
directory, which decides what disk is measured, and removed.
"""

import argparse
import fcntl
import mmap
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtp_loader.pool.expert_reader import ExpertReader, Place
from mtp_loader.pool.layout import make_layout
from mtp_loader.pool.readers import ReaderThreads
from mtp_loader.pool.region import PoolRegion
from mtp_loader.store.source import Extent
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation
from mtp_protocol.lifeline import create_region

PAGE = 4096


def planes_of(nbytes: int) -> tuple[Plane, ...]:
    """Nine planes as a 4-bit expert with float32 scales has them, `nbytes` together, rows of whole blocks."""
    scales = nbytes // 18 // 512 * 512 // 4
    weight = (nbytes - 6 * scales * 4) // 3 // 512 * 512 // 4
    return tuple(
        Plane(f"{projection}.{name}", dtype, dtype, (words,))
        for projection in ("gate", "up", "down")
        for name, dtype, words in (
            ("weight", "uint32", weight),
            ("scales", "uint32", scales),
            ("biases", "uint32", scales),
        )
    )


@dataclass(frozen=True)
class Records:
    """A file of records, one expert each, a page apart at least."""

    path: Path
    planes: tuple[Plane, ...]
    count: int
    checksums: list[int] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(p.source_bytes for p in self.planes)

    @property
    def stride(self) -> int:
        return -(-self.nbytes // PAGE) * PAGE

    alignment = PAGE

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def geometry(self) -> Geometry:
        plain = Quantisation()
        bank = Bank(0, self.planes, plain, plain, plain, (0,))
        return Geometry("bench", "bench", True, 1, (bank,), (Layer(0, 0, self.count, 8),))

    def extents(self, layer: int, expert: int) -> tuple[Extent, ...]:
        return (Extent(0, expert * self.stride, self.nbytes, tuple(range(len(self.planes)))),)

    def checksum(self, layer: int, expert: int) -> int | None:
        return self.checksums[expert]

    def write(self) -> None:
        """Random numbers: a file of zeros may be stored as a hole."""
        rng = np.random.default_rng(1)
        with open(self.path, "wb") as file:
            for _ in range(self.count):
                rows = [
                    rng.standard_normal(p.shape, np.float32).tobytes()
                    if p.dtype == "float32"
                    else rng.bytes(p.row_bytes)
                    for p in self.planes
                ]
                record = b"".join(rows)
                self.checksums.append(zlib.crc32(record))
                file.write(record.ljust(self.stride, b"\0"))
            file.flush()
            os.fsync(file.fileno())


def plain_threads(records: Records, order: Sequence[int], threads: int) -> float:
    """Seconds for all records with nothing but preadv."""
    if sys.platform == "linux":
        fd = os.open(records.path, os.O_RDONLY | os.O_DIRECT)
    else:
        fd = os.open(records.path, os.O_RDONLY)
        fcntl.fcntl(fd, 48, 1)  # F_NOCACHE
    waiting, lock = list(order), threading.Lock()

    def work() -> None:
        buffer = memoryview(mmap.mmap(-1, records.stride))
        while True:
            with lock:
                if not waiting:
                    return
                expert = waiting.pop()
            assert os.preadv(fd, [buffer], expert * records.stride) == records.stride

    workers = [threading.Thread(target=work) for _ in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - began
    os.close(fd)
    return seconds


class Loader:
    """The loader's reader threads over a pool of `slots` slots, without its process."""

    def __init__(self, records: Records, threads: int, slots: int) -> None:
        geometry = records.geometry
        layout = make_layout(geometry, slots * geometry.banks[0].slot_bytes, 1)
        self.slots, self._count = layout.banks[0].slots, threading.Semaphore(0)
        self._fd = create_region(layout.nbytes)
        self._region = PoolRegion(self._fd, layout.nbytes, geometry, layout)
        for slot in range(self.slots):  # the pool's pages exist in a loader that has run for a while
            for row in self._region.rows(0, slot):
                row[::PAGE] = bytes(len(row[::PAGE]))
        self._reader = ExpertReader(records, direct=True, verify="first", preadv=os.preadv)
        self._threads = ReaderThreads(self._reader, threads, self._count.release)

    def read(self, order: Sequence[int]) -> float:
        """Seconds for all records, as many under way as there are slots."""
        free, left, todo = list(range(self.slots)), len(order), list(order)
        began = time.perf_counter()
        while left:
            while free and todo:
                self._threads.submit(self._region, Place(0, free.pop(), 0, todo.pop()), demand=True)
            self._count.acquire()
            for result in self._threads.results():
                assert result.error is None, result.error
                free.append(result.place.slot)
                left -= 1
        return time.perf_counter() - began

    def close(self) -> None:
        self._threads.stop(10.0)
        self._reader.close()
        self._region.close()
        os.close(self._fd)


def measure(records: Records, threads: int, rounds: int) -> dict[str, list[float]]:
    """Bandwidths in GB/s, the three ways in turn, each round in another order of records."""
    rng = random.Random(1)
    total = records.count * records.nbytes
    found: dict[str, list[float]] = {"plain threads": [], "loader, first read": [], "loader, again": []}
    for _ in range(rounds):
        order = rng.sample(range(records.count), records.count)
        loader = Loader(records, threads, 4 * threads)
        ways: tuple[tuple[str, Callable[[], float]], ...] = (
            ("plain threads", lambda: plain_threads(records, order, threads)),  # noqa: B023
            ("loader, first read", lambda: loader.read(order)),  # noqa: B023
            ("loader, again", lambda: loader.read(order)),  # noqa: B023
        )
        for name, way in ways:
            found[name].append(total / way() / 1e9)
        loader.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=400)
    parser.add_argument("--expert-bytes", type=int, default=1_769_472)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as directory:
        records = Records(Path(directory) / "experts", planes_of(args.expert_bytes), args.experts)
        records.write()
        found = measure(records, args.threads, args.rounds)
    reference = statistics.median(found["plain threads"])
    print(f"{args.experts} records of {records.nbytes} bytes, {args.threads} threads, {args.rounds} rounds")
    for name, rates in found.items():
        median = statistics.median(rates)
        print(
            f"{name:20} {median:6.2f} GB/s  ({min(rates):.2f} to {max(rates):.2f})  {median / reference:.2f} of plain"
        )


if __name__ == "__main__":
    main()
