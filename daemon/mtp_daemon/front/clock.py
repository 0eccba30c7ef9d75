"""The front's clock: time that passed while we ran. A machine that slept has not kept anybody waiting."""

import time
from collections.abc import Callable

# What a loop turn may take beyond the wait it asked for. More means that we were stopped, not slow.
_SLACK_S = 1.0


class RunningClock:
    """Monotonic seconds; `tick` once a loop turn, and every deadline of the front is in its time."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._seen = source()
        self.now = 0.0
        self.stopped_s = 0.0

    def tick(self, waited_s: float = 0.0) -> float:
        """Move on; `waited_s` is how long the poll was allowed to wait."""
        seen = self._source()
        passed = seen - self._seen
        counted = min(passed, waited_s + _SLACK_S)
        self._seen = seen
        self.now += counted
        self.stopped_s += passed - counted
        return self.now
