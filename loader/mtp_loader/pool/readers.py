"""The reader threads: demands before prefetches, several experts and several pieces of one at a time.

Prefetches never take all threads, so that a demand finds one. A prefetch whose read has not begun can be taken back,
and is moved to the demands when one comes for it. Results are handed over by `results`, after `wake` was called.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mtp_loader.errors import LoaderError
from mtp_loader.pool.expert_reader import ExpertReader, Place
from mtp_loader.pool.region import PoolRegion
from mtp_loader.store.source import Extent


@dataclass(frozen=True)
class FillResult:
    """One expert's read is over; `error` says why it failed. `seconds` from its first byte asked to its last.

    `began` is on the monotonic clock; `beside` is how many other experts were being read then.
    """

    place: Place
    demand: bool
    error: str | None
    seconds: float
    began: float
    beside: int


@dataclass(eq=False)
class _Task:
    place: Place
    region: PoolRegion
    demand: bool
    pieces: deque[Extent] = field(default_factory=deque)
    running: int = 0
    began: float | None = None
    beside: int = 0
    error: str | None = None


class ReaderThreads:
    """`threads` threads over one ExpertReader. All methods are called by the owner's thread."""

    def __init__(self, reader: ExpertReader, threads: int, wake: Callable[[], None]) -> None:
        self._reader, self._wake = reader, wake
        self._prefetch_limit = max(1, threads // 2)
        self._prefetching = 0
        self._reading = 0  # experts whose read has begun and is not over
        self._ready = threading.Condition()
        self._demands: deque[_Task] = deque()
        self._prefetches: deque[_Task] = deque()
        self._tasks: dict[tuple[int, int], _Task] = {}
        self._results: deque[FillResult] = deque()
        self._stopping = False
        self._threads = [threading.Thread(target=self._work, name=f"reader-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, region: PoolRegion, place: Place, *, demand: bool) -> None:
        """Queues a read; a result follows unless `cancel` takes it back."""
        task = _Task(place, region, demand, deque(self._reader.pieces(place)))
        with self._ready:
            self._tasks[place.bank, place.slot] = task
            (self._demands if demand else self._prefetches).append(task)
            self._ready.notify(len(task.pieces))

    def hand_over(self) -> None:
        """Lets the threads begin what was submitted: they need the interpreter's lock, and perhaps this very core."""
        os.sched_yield()

    def promote(self, bank: int, slot: int) -> None:
        """A prefetch is demanded now; nothing happens to one that is over already."""
        with self._ready:
            task = self._tasks.get((bank, slot))
            if task is None or task.demand:
                return
            task.demand = True
            self._prefetching -= task.running
            if task in self._prefetches:
                self._prefetches.remove(task)
                self._demands.append(task)
            self._ready.notify_all()

    def cancel(self, bank: int, slot: int) -> bool:
        """Takes a prefetch back; false if its read has begun or it is none."""
        with self._ready:
            task = self._tasks.get((bank, slot))
            if task is None or task.demand or task.began is not None:
                return False
            self._prefetches.remove(task)
            del self._tasks[bank, slot]
            return True

    def results(self) -> list[FillResult]:
        """The reads that ended since the last call, oldest first."""
        with self._ready:
            ended = list(self._results)
            self._results.clear()
        return ended

    def settle(self, deadline_s: float) -> bool:
        """Drops what has not begun and every result; false if a read is still under way after `deadline_s`."""
        with self._ready:
            for queue in (self._demands, self._prefetches):
                for task in queue:
                    task.pieces.clear()
                    if not task.running:
                        del self._tasks[task.place.bank, task.place.slot]
                queue.clear()
            ended = self._ready.wait_for(lambda: not self._tasks, deadline_s)
            self._results.clear()
            return ended

    @property
    def queued(self) -> int:
        """Experts queued or being read."""
        return len(self._tasks)

    def stop(self, deadline_s: float) -> bool:
        """Begins no more reads and waits for those under way; false if some thread is stuck in one."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()
        deadline = time.monotonic() + deadline_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            task, piece = taken
            error = self._guarded(lambda: self._reader.read(task.region, task.place, piece))  # noqa: B023
            if self._piece_ended(task, error):
                if task.error is None:
                    task.error = self._guarded(lambda: self._reader.check(task.region, task.place))  # noqa: B023
                self._finish(task)

    def _guarded(self, work: Callable[[], None]) -> str | None:
        """A reader thread is a boundary: whatever goes wrong with one expert is that expert's failure."""
        try:
            work()
        except LoaderError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
        return None

    def _next(self) -> tuple[_Task, Extent] | None:
        with self._ready:
            while not self._stopping:
                if self._demands:
                    return self._take(self._demands)
                if self._prefetches and self._prefetching < self._prefetch_limit:
                    return self._take(self._prefetches)
                self._ready.wait()
            return None

    def _take(self, queue: deque[_Task]) -> tuple[_Task, Extent]:
        task = queue[0]
        piece = task.pieces.popleft()
        if not task.pieces:
            queue.popleft()
        task.running += 1
        self._prefetching += not task.demand
        if task.began is None:
            task.began, task.beside = time.monotonic(), self._reading
            self._reading += 1
        return task, piece

    def _piece_ended(self, task: _Task, error: str | None) -> bool:
        """True for the thread that ends the task's last piece: no one else writes the slot any more."""
        with self._ready:
            task.running -= 1
            if not task.demand:
                self._prefetching -= 1
                self._ready.notify()
            if error is not None:
                task.error = task.error or error
                if task.pieces:  # a task with pieces left is still queued
                    task.pieces.clear()
                    (self._demands if task.demand else self._prefetches).remove(task)
            return task.running == 0 and not task.pieces

    def _finish(self, task: _Task) -> None:
        began = task.began or 0.0
        seconds = time.monotonic() - began
        with self._ready:
            self._reading -= 1
            del self._tasks[task.place.bank, task.place.slot]
            self._results.append(FillResult(task.place, task.demand, task.error, seconds, began, task.beside))
            self._ready.notify_all()
        self._wake()
