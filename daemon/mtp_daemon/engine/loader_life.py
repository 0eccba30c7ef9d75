"""What the engine's I/O thread tells its MLX thread of the loader, even while that one waits for it."""

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from mtp_protocol.engine_messages import LoaderDead, LoaderUp

__all__ = ["LoaderDead", "LoaderLife", "LoaderUp", "Stopping"]


@dataclass(frozen=True)
class Stopping:
    """The engine is to leave: a wait for the loader ends at once."""


Event = LoaderUp | LoaderDead | Stopping


class LoaderLife:
    """A queue with one writer (the I/O thread) and one reader (the MLX thread, which owns the object).

    The reader polls `fileno()` together with its socket; deque's append and popleft are atomic.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def loader_up(self, epoch: int, address: str) -> None:
        self._put(LoaderUp(epoch, address))

    def loader_dead(self, epoch: int) -> None:
        self._put(LoaderDead(epoch))

    def stop(self) -> None:
        self._put(Stopping())

    def _put(self, event: Event) -> None:
        self._events.append(event)
        with suppress(BlockingIOError):  # a pipe full of wake-ups wakes the reader too
            os.write(self._write_fd, b"!")

    def fileno(self) -> int:
        return self._read_fd

    def __bool__(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._events)

    def take(self) -> Event | None:
        """The oldest event not yet taken."""
        with suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                continue
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        """Reader, when no writer is left."""
        os.close(self._read_fd)
        os.close(self._write_fd)
