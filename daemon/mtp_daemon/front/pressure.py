"""How large the pool may be while the machine is short of memory. Pure: a level and a time in, a share out.

Shrinking is quick, for a starved machine is slow for everybody; growing is slow and gets slower each time it was
answered by new pressure, so that the pool settles below the size that brings pressure instead of swinging around it.
"""

from enum import IntEnum

# A step's effect shows in PSI's ten-second average only after about as long.
_STEP_EVERY_S = 10.0
_SHRINK = {1: 0.10, 2: 0.25}
_GROW = 0.05
_QUIET_S, _LONGEST_QUIET_S = 60.0, 1920.0
# Pressure this soon after growing was brought by it.
_BLAME_S = 120.0


class Level(IntEnum):
    """NONE: fine; SOME: work waits for memory now and then; CRITICAL: little else happens."""

    NONE = 0
    SOME = 1
    CRITICAL = 2


class PressurePolicy:
    """`share` is the part of the wanted size, between what the model needs and all of it, that the pool may take."""

    def __init__(self) -> None:
        self.share = 1.0
        self._stepped_at = float("-inf")
        self._grew_at = float("-inf")
        self._quiet_since = 0.0
        self._quiet_s = _QUIET_S

    def look(self, level: Level, now: float) -> float:
        """The share from now on. `now` is monotonic seconds; call it about once a second."""
        if level is Level.NONE:
            self._grow(now)
        else:
            self._quiet_since = now
            if now - self._stepped_at >= _STEP_EVERY_S and self.share > 0.0:
                if now - self._grew_at < _BLAME_S:
                    self._quiet_s = min(2 * self._quiet_s, _LONGEST_QUIET_S)
                    self._grew_at = float("-inf")
                self.share = max(0.0, round(self.share - _SHRINK[level], 6))
                self._stepped_at = now
        return self.share

    def _grow(self, now: float) -> None:
        if self.share >= 1.0:
            if now - self._quiet_since > _LONGEST_QUIET_S:
                self._quiet_s = _QUIET_S
            return
        if now - max(self._quiet_since, self._stepped_at) < self._quiet_s:
            return
        self.share = min(1.0, round(self.share + _GROW, 6))
        self._stepped_at = self._grew_at = now


def limits(share: float, wanted: tuple[int, ...], minimum: tuple[int, ...]) -> tuple[int, ...]:
    """Slots of each bank at `share`: 1 is `wanted`, 0 the least that the model works with."""
    return tuple(low + int(share * max(0, most - low)) for most, low in zip(wanted, minimum, strict=True))
