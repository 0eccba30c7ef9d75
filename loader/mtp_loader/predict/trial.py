"""Whether forwards are quicker with reading ahead or without, by trying both: the last word over every model of costs.

What reading ahead saves is waiting; what it costs is also compute in the engine (guesses), the second core, and memory
traffic, which no count of reads shows. So now and then a few forwards run the other way, and medians are compared.
"""

from collections import deque
from statistics import median

_FIRST = 24  # forwards before the first trial: the predictor has learned its first claims by then
_TRIAL = 16  # forwards the other way
_SETTLING = 3  # of them not counted: what was read ahead before still counts in these
_KEPT = 48  # forwards of each way that are compared; older ones had another pool and another text
# Forwards between trials, doubling while the verdict stays: under 0.5 % of them in the end.
_SHORTEST, _LONGEST = 64, 4096
_BETWEEN_S = 30.0  # a longer time between two reports lies between two requests
_GAIN = 0.99  # of the time without, at most: a tie goes to the way that reads and computes less


class Trial:
    """Told of each forward's length; `on` is the way to go now. Lengths in seconds, of forwards alike in tokens."""

    def __init__(self) -> None:
        self.on = True
        self.verdicts = 0
        self._times: dict[bool, deque[float]] = {way: deque(maxlen=_KEPT) for way in (True, False)}
        self._best = True
        self._reported: tuple[float, tuple[int, int]] | None = None
        self._left, self._since, self._rest = _FIRST, 0, _SHORTEST

    def reported(self, now: float, kind: tuple[int, int]) -> None:
        """A forward of this kind (tokens, layers) was reported; timed from one report to the next of the same kind."""
        before, self._reported = self._reported, (now, kind)
        if before is not None and before[1] == kind and now - before[0] < _BETWEEN_S:
            self.forward(now - before[0])

    def forward(self, seconds: float) -> None:
        self._since += 1
        if self._since > _SETTLING:
            self._times[self.on].append(seconds)
        self._left -= 1
        if self._left > 0:
            return
        if self.on == self._best:
            self._go(not self._best, _TRIAL)
            return
        best = median(self._times[True]) < _GAIN * median(self._times[False])
        self.verdicts += 1
        self._rest = min(2 * self._rest, _LONGEST) if best == self._best else _SHORTEST
        self._best = best
        self._go(best, self._rest)

    def _go(self, on: bool, forwards: int) -> None:
        self._since = 0 if on != self.on else self._since
        self.on, self._left = on, forwards

    def facts(self) -> dict[str, float]:
        """Median seconds of a forward each way, as far as known."""
        return {
            name: median(self._times[way]) for name, way in (("with", True), ("without", False)) if self._times[way]
        }
