"""Reader threads: which read begins first, which can be taken back, and who waits for the last one."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mtp_loader.pool.expert_reader import ExpertReader, Place
from mtp_loader.pool.readers import FillResult, ReaderThreads
from mtp_loader.pool.region import PoolRegion
from support.plain_source import PlainSource


class Gate:
    """A preadv that lets reads begin one by one, and knows in which order they did."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.entered = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)

    def __call__(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.begun.append(offset // 4096)
        self.entered.release()
        assert self.allowed.acquire(timeout=20)
        return os.preadv(fd, buffers, offset)


class Bench:
    """Reader threads over a gate."""

    def __init__(self, source: PlainSource, region: PoolRegion, threads: int) -> None:
        self.gate, self.region = Gate(), region
        self.reader = ExpertReader(source, direct=False, verify="first", preadv=self.gate)
        self.woken = threading.Semaphore(0)
        self.threads = ReaderThreads(self.reader, threads, self.woken.release)

    def submit(self, expert: int, *, demand: bool) -> None:
        self.threads.submit(self.region, Place(0, expert, 0, expert), demand=demand)

    def results(self, n: int) -> list[FillResult]:
        found: list[FillResult] = []
        while len(found) < n:
            assert self.woken.acquire(timeout=20)
            found += self.threads.results()
        return found

    def close(self) -> None:
        for _ in range(100):
            self.gate.allowed.release()
        assert self.threads.stop(20.0)
        self.reader.close()


@pytest.fixture
def bench(tmp_path: Path, region_of: Callable[..., PoolRegion]) -> Iterator[Callable[[int], Bench]]:
    source = PlainSource(tmp_path / "experts", 8)
    opened: list[Bench] = []

    def make(threads: int) -> Bench:
        opened.append(Bench(source, region_of(source), threads))
        return opened[-1]

    yield make
    for b in opened:
        b.close()


def test_demands_are_read_before_prefetches(bench: Callable[[int], Bench]) -> None:
    """Reads nobody waits for never go first; one that is demanded meanwhile moves up."""
    b = bench(1)
    b.submit(0, demand=True)
    assert b.gate.entered.acquire(timeout=20)  # the one thread is busy
    b.submit(1, demand=False)
    b.submit(2, demand=False)
    b.submit(3, demand=True)
    b.threads.promote(0, 2)
    for _ in range(4):
        b.gate.allowed.release()
    b.results(4)
    assert b.gate.begun == [0, 3, 2, 1]


def test_prefetches_leave_a_thread_for_demands(bench: Callable[[int], Bench]) -> None:
    """With every prefetch slow, a demand still begins at once."""
    b = bench(2)
    for expert in (1, 2, 3):
        b.submit(expert, demand=False)
    assert b.gate.entered.acquire(timeout=20)
    b.submit(4, demand=True)
    assert b.gate.entered.acquire(timeout=20)
    assert sorted(b.gate.begun) == [1, 4]


def test_a_prefetch_can_be_taken_back_until_it_begins(bench: Callable[[int], Bench]) -> None:
    """What was taken back is never read; what has begun is refused and ends like any other."""
    b = bench(1)
    b.submit(1, demand=False)
    assert b.gate.entered.acquire(timeout=20)
    b.submit(2, demand=False)
    assert b.threads.cancel(0, 2)
    assert not b.threads.cancel(0, 1) and not b.threads.cancel(0, 2)
    b.gate.allowed.release()
    assert [r.place.expert for r in b.results(1)] == [1]
    assert b.gate.begun == [1] and b.threads.queued == 0


def test_settling_waits_for_the_last_writer(bench: Callable[[int], Bench]) -> None:
    """A pool is left only when no thread writes to it: what has not begun is dropped, what has is waited for."""
    b = bench(2)
    for expert in (0, 1, 2, 3):
        b.submit(expert, demand=True)
    for _ in range(2):
        assert b.gate.entered.acquire(timeout=20)
    assert not b.threads.settle(0.05)
    for _ in range(2):
        b.gate.allowed.release()
    assert b.threads.settle(20.0)
    assert len(b.gate.begun) == 2 and b.threads.results() == []
