"""What the engine's I/O thread tells its MLX thread of the loader, even while that one waits for it."""

from collections import deque
from dataclasses import dataclass

from mtp_protocol.engine_messages import LoaderDead, LoaderUp
from mtp_protocol.wake import Wake

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
        self._wake = Wake()

    def loader_up(self, epoch: int, address: str) -> None:
        self._put(LoaderUp(epoch, address))

    def loader_dead(self, epoch: int) -> None:
        self._put(LoaderDead(epoch))

    def stop(self) -> None:
        self._put(Stopping())

    def _put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def fileno(self) -> int:
        return self._wake.fileno()

    def __bool__(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._events)

    def take(self) -> Event | None:
        """The oldest event not yet taken."""
        self._wake.clear()
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        """Reader, when no writer is left."""
        self._wake.close()
