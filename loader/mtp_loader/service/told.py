"""What prediction tells of itself: sums so far, and the last minutes one by one."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mtp_loader.predict.attribution import Attribution
from mtp_loader.predict.recall import Meter

MINUTE_S = 60.0
_MINUTES = 15  # kept: they travel with every beat


class Minutes:
    """What each of the last minutes added to the counts; minutes in which nothing was asked are left out."""

    def __init__(self, now: float) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=_MINUTES)
        self._next = now + MINUTE_S
        self._before: dict[str, int] = asdict(Attribution())

    def tick(self, counts: Attribution, now: float) -> None:
        if now < self._next:
            return
        self._next = now + MINUTE_S
        counted = asdict(counts)
        added = Attribution(**{name: n - self._before[name] for name, n in counted.items()})
        self._before = counted
        if added.hits + added.misses:
            self._kept.append({"at_s": now} | added.facts())

    def told(self) -> list[dict[str, Any]]:
        """Oldest first; `at_s` is the minute's end on the loader's monotonic clock."""
        return list(self._kept)


def recall_by_source(meters: Mapping[int, Mapping[str, Meter]]) -> dict[str, dict[str, float]]:
    """Recall at k and 2k of each source over all layers."""
    return {
        name: _shares([of_layer[name] for of_layer in meters.values()])
        for name in next(iter(meters.values()), {})
        if any(of_layer[name].wanted for of_layer in meters.values())
    }


def recall_by_layer(meters: Mapping[int, Mapping[str, Meter]]) -> dict[str, dict[str, dict[str, float]]]:
    """The same, layer by layer."""
    return {
        str(layer): {name: _shares([m]) for name, m in of_layer.items() if m.wanted}
        for layer, of_layer in meters.items()
    }


def _shares(meters: list[Meter]) -> dict[str, float]:
    wanted = sum(m.wanted for m in meters)
    return {
        "at_k": sum(m.at_k for m in meters) / wanted,
        "at_2k": sum(m.at_2k for m in meters) / wanted,
        "wanted": wanted,
    }
