"""Repeated measurements as medians with their spread, shares of them, and tables of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of repeated measurements of one thing."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError for no values: a figure nobody measured is not a figure."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def paired_ratio(measured: Sequence[float], reference: Sequence[float]) -> Spread:
    """`measured / reference`, pair by pair: what drifts with the machine cancels within a pair."""
    return Spread.of([m / r for m, r in zip(measured, reference, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1] of the values do not exceed (nearest rank).

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("nothing was measured")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness, `(sum x)^2 / (n * sum x^2)`: 1 where all have alike, 1/n where one has everything.

    Jain, Chiu, Hawe 1984. Values that are all 0 are alike.
    """
    squares = sum(x * x for x in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def decode_bound(compute_s: float, bytes_per_token: float, bandwidth: float) -> float:
    """Tokens a second that no streaming can beat: a token's compute and its reads, perfectly overlapped.

    `compute_s` a token with everything resident; `bandwidth` in bytes a second, of parallel reads.
    """
    return 1 / max(compute_s, bytes_per_token / bandwidth)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)
