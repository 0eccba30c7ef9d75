"""What the service manager is told, and when its watchdog is fed."""

from mtp_daemon.front.lineup import Lineup
from mtp_daemon.services.notify import SystemdNotice

_EXTEND_S = 60.0


class Watchdog:
    """Feeds only on a fresh beat of the engine, or on true idleness with both children well."""

    def __init__(self) -> None:
        self._manager = SystemdNotice()
        self._heard: float | None = None
        self._progress = -1

    def ready(self, status: str) -> None:
        self._manager.ready(status)

    def stopping(self) -> None:
        self._manager.stopping()

    def look(self, lineup: Lineup, *, busy: bool, serving: bool) -> None:
        vigil = lineup.engine.vigil
        fresh = vigil.heard is not None and vigil.heard != self._heard
        moving = vigil.progress != self._progress
        if fresh and not serving:
            self._manager.loading(_EXTEND_S)
        elif fresh and (moving or not busy):
            self._manager.alive()
        if fresh:
            self._heard, self._progress = vigil.heard, vigil.progress
