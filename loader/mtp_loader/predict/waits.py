"""When the engine was waiting for the disk, and how much reads slow each other: what a read ahead really costs."""

from collections import deque

_KEPT = 256  # waits; a read that lasted longer than the last 256 of them would be another disk's
_FADE = 0.98  # a read's weight against the next one's: about the last 50 reads count
_FEW = 8.0  # reads' worth of evidence below which a disk counts as one that serves one read after the other


class Waits:
    """The intervals in which some demand was unanswered. Seconds on the caller's clock."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._since: float | None = None

    def note(self, waiting: bool, now: float) -> None:
        """Whether a demand is unanswered from `now` on."""
        if waiting and self._since is None:
            self._since = now
        elif not waiting and self._since is not None:
            self._ended.append((self._since, now))
            self._since = None

    def within(self, began: float, ended: float) -> float:
        """For how much of that time a demand was waiting."""
        total = 0.0 if self._since is None else max(0.0, ended - max(began, self._since))
        for since, until in reversed(self._ended):
            if until <= began:
                break
            total += max(0.0, min(ended, until) - max(began, since))
        return total


class Contention:
    """How much longer a read takes for each other one beside it, as a share of a read alone, 0..1.

    1: the disk's bandwidth is the limit, a read ahead delays a demand by all of its length. 0: latency is, and reads
    side by side cost each other nothing. The slope of a fading least-squares line through (reads beside, seconds).
    """

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, beside: int, seconds: float) -> None:
        """A read took so long, and had so many others beside it when it began."""
        self._n = self._n * _FADE + 1.0
        self._x = self._x * _FADE + beside
        self._y = self._y * _FADE + seconds
        self._xx = self._xx * _FADE + beside * beside
        self._xy = self._xy * _FADE + beside * seconds

    @property
    def share(self) -> float:
        """1 until enough reads of different company were seen: rather too careful than in the way of a demand."""
        spread = self._n * self._xx - self._x * self._x
        if self._n < _FEW or spread <= 0.05 * self._n * self._n:
            return 1.0
        slope = (self._n * self._xy - self._x * self._y) / spread
        alone = (self._y - slope * self._x) / self._n
        return min(max(slope / alone, 0.0), 1.0) if alone > 0.0 else 1.0
