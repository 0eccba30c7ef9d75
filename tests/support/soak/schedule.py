"""When the next thing is due: by chance, but so many in the long run, whatever a single one takes."""

import random

# Two of one kind may come close together, as troubles do, but not all at once after a delay.
_APART_S = 0.5


class Schedule:
    """Due `every_s` on average. Times are the caller's seconds, from 0 on."""

    def __init__(self, rng: random.Random, every_s: float) -> None:
        self._rng, self._every_s = rng, every_s
        self._plan_at = self._not_before = 0.0
        self.done(0.0)

    def due(self, now: float) -> bool:
        return now >= max(self._plan_at, self._not_before)

    def done(self, now: float) -> None:
        """It was done: the next one's time counts from when this one was planned, so that no delay lowers the rate."""
        self._plan_at += self._rng.uniform(0.1, 1.9) * self._every_s
        self._not_before = now + _APART_S
