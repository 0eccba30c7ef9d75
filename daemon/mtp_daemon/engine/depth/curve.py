"""A quantity as a function of the number of positions in a forward, learnt from noisy, drifting observations."""

from dataclasses import dataclass


@dataclass
class _Point:
    weight: float = 0.0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight


class Curve:
    """`at(x)` for x = 0, 1, 2, … further positions: a line fitted to decayed means, bent towards a point's own mean.

    Before two different x are seen the line's slope is `rise` of its value at 0. Observations lose half their weight
    in `half_life` later ones, at whatever x those are. One far above what is known counts as `CLIP` times it: a
    hiccup of the machine must not look like a law.
    """

    CLIP = 4.0
    DRIFT = 0.1  # the share of a surprise that moves the whole curve
    FIRST_WEIGHT = 0.25  # the first forward of a shape compiles kernels and faults pages in
    PRIOR_WEIGHT = 0.5
    OWN_WEIGHT = 2.0  # how much of the line a point's own mean outweighs

    def __init__(self, rise: float, half_life: float) -> None:
        self._rise = rise
        self._keep = 0.5 ** (1.0 / half_life)
        self._points: dict[int, _Point] = {}
        self._fitted: tuple[float, float] | None = None

    def observe(self, x: int, value: float) -> None:
        drift = self._drift(x, value)
        self._fitted = None
        for point in self._points.values():
            point.weight *= self._keep
            point.total *= self._keep * drift
        first = x not in self._points
        point = self._points.setdefault(x, _Point())
        if not first and point.mean > 0:
            value = min(value, self.CLIP * point.mean)
        weight = self.FIRST_WEIGHT if first else 1.0
        point.weight += weight
        point.total += weight * value

    def _drift(self, x: int, value: float) -> float:
        """What changes at one x (a colder pool, a hotter machine) changes at all, in proportion."""
        expected = self.at(x)
        if expected <= 0 or x not in self._points:
            return 1.0
        return 1.0 + self.DRIFT * (min(value / expected, self.CLIP) - 1.0)

    def evidence(self, x: int) -> float:
        """The decayed number of observations at x."""
        point = self._points.get(x)
        return point.weight if point else 0.0

    def at(self, x: int) -> float:
        """The expected value at x, never negative; 0 before anything was seen."""
        if not self._points:
            return 0.0
        if self._fitted is None:
            self._fitted = self._line()
        level, slope = self._fitted
        line = max(0.0, level + slope * x)
        point = self._points.get(x)
        if point is None:
            return line
        own = point.weight * self.OWN_WEIGHT
        return (own * point.mean + line) / (own + 1.0)

    def _line(self) -> tuple[float, float]:
        """Weighted least squares of value on x, with a pull of the slope towards `rise` times the level."""
        points = self._points.items()
        weight = sum(p.weight for _, p in points)
        mean_x = sum(p.weight * x for x, p in points) / weight
        mean_y = sum(p.total for _, p in points) / weight
        spread = sum(p.weight * (x - mean_x) ** 2 for x, p in points)
        joint = sum(p.weight * (x - mean_x) * (p.mean - mean_y) for x, p in points)
        prior = self._rise * mean_y / (1.0 + self._rise * mean_x)
        slope = (joint + self.PRIOR_WEIGHT * prior) / (spread + self.PRIOR_WEIGHT)
        return mean_y - slope * mean_x, slope
