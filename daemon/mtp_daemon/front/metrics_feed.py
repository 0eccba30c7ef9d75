"""What the front's loop does for metrics: once a second a new snapshot, and nothing when they are off."""

from collections.abc import Callable, Mapping
from typing import Any

import psutil

from mtp_daemon.front.metrics import Snapshot
from mtp_daemon.front.metrics_port import MetricsPort
from mtp_daemon.front.totals import Totals

_EVERY_S = 1.0


class MetricsFeed:
    """`look` is called often and does its work rarely."""

    def __init__(self, place: str | None, status: Callable[[], Mapping[str, Any]], totals: Totals) -> None:
        self._port = MetricsPort(place) if place is not None else None
        self._status, self._totals = status, totals
        self._next = 0.0

    @property
    def at(self) -> str | None:
        return self._port.at if self._port is not None else None

    def look(self, now: float) -> None:
        if self._port is None or now < self._next:
            return
        self._next = now + _EVERY_S
        status, totals = self._status(), self._totals
        self._port.snapshot = Snapshot(
            status, totals.tokens, totals.prompt_tokens, dict(totals.sums), _rss(status), dict(totals.unions)
        )

    def close(self) -> None:
        if self._port is not None:
            self._port.close()


def _rss(status: Mapping[str, Any]) -> dict[str, int]:
    pids = {"front": status["pid"]} | {role: child["pid"] for role, child in status["children"].items()}
    rss = {}
    for name, pid in pids.items():
        try:
            rss[name] = int(psutil.Process(pid).memory_info().rss) if pid is not None else None
        except psutil.Error:
            continue
    return {name: nbytes for name, nbytes in rss.items() if nbytes is not None}
