"""What the I/O thread hands to the MLX thread."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from mtp_daemon.engine.errors import EngineStopping, EnvironmentFailed
from mtp_daemon.engine.loader_life import LoaderLife
from mtp_protocol.engine_messages import Pool, Start
from mtp_protocol.wake import Wake


class Mailbox:
    """Written by the I/O thread, read by the MLX thread, under one lock; `life` tells of the loader beside it.

    `changes` becomes readable with each change, so that a wait for it can watch other descriptors too.
    """

    def __init__(self) -> None:
        self.life = LoaderLife()
        self._changed = threading.Condition()
        self._starts: deque[Start] = deque()
        self._cancelled: set[bytes] = set()
        self._pool: Pool | None = None
        self._regions: dict[int, int] = {}
        self._stopping = False
        self.stopped_by_front = False
        self.changes = Wake()

    # -- the I/O thread --------------------------------------------------------------------------------------------

    def start(self, message: Start) -> None:
        self._change(lambda: self._starts.append(message))

    def cancel(self, request: bytes) -> None:
        self._change(lambda: self._cancelled.add(request))

    def pool(self, message: Pool) -> None:
        self._change(lambda: setattr(self, "_pool", message))

    def region(self, generation: int, fd: int) -> None:
        """The same region may be announced twice: the descriptor that is known stays."""

        def put() -> None:
            if generation in self._regions:
                os.close(fd)
            else:
                self._regions[generation] = fd

        self._change(put)

    def stop(self, *, by_front: bool) -> None:
        """Every wait of the MLX thread ends with EngineStopping.

        Without the front's order this is a death like any other: the next engine goes on with what was asked.
        """
        self.stopped_by_front |= by_front
        self._change(lambda: setattr(self, "_stopping", True))
        self.life.stop()

    def _change(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()
        self.changes()

    # -- the MLX thread --------------------------------------------------------------------------------------------

    def wait_for_pool(self, timeout_s: float) -> tuple[Pool, int]:
        """The pool's layout and its region's descriptor. Raises EngineStopping, EnvironmentFailed in time."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._pool is None or self._pool.layout.generation not in self._regions:
                self._check_stop()
                left = until - time.monotonic()
                if left <= 0:
                    raise EnvironmentFailed(f"waited {timeout_s:g} s for the pool")
                self._changed.wait(left)
            return self._pool, self._regions[self._pool.layout.generation]

    def next_start(self) -> Start | None:
        """The next request, if there is one. Raises EngineStopping."""
        self.changes.clear()
        with self._changed:
            self._check_stop()
            return self._starts.popleft() if self._starts else None

    def check(self, request: bytes) -> bool:
        """Whether the running request is cancelled. Raises EngineStopping."""
        with self._changed:
            self._check_stop()
            return request in self._cancelled

    def forget(self, request: bytes) -> None:
        """It has ended: a Cancel that comes too late is of no use."""
        with self._changed:
            self._cancelled.discard(request)
            self._cancelled.intersection_update({s.request for s in self._starts})

    def pool_replaced(self, generation: int) -> bool:
        """The front has made another region since."""
        with self._changed:
            return self._pool is not None and self._pool.layout.generation != generation

    def _check_stop(self) -> None:
        if self._stopping:
            raise EngineStopping("the engine is stopping")

    def close(self) -> None:
        """When the I/O thread has ended."""
        for fd in self._regions.values():
            os.close(fd)
        self.changes.close()
        self._regions.clear()
        self.life.close()


class Activity:
    """What the MLX thread is doing, for the beats. One writer; the I/O thread reads single attributes.

    `progress` counts forwards and chunks; `counters`, when set, adds what moves within one (a layer's host reads), so
    that a long chunk on a slow disk is not taken for a standstill.
    """

    def __init__(self) -> None:
        self.busy = False
        self.steps = 0
        self.counters: Callable[[], int] | None = None

    def step(self) -> None:
        self.steps += 1

    @property
    def progress(self) -> int:
        counters = self.counters
        return self.steps + (counters() if counters is not None else 0)
