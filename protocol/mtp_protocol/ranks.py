"""Mean and ranks of sizes that were counted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How large something was, over many times: mean, median, 99th percentile and maximum."""

    mean: float
    p50: int
    p99: int
    largest: int

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> "Sizes":
        """`counts` says how often each size was seen. Raises ValueError for none."""
        times = sum(counts.values())
        if not times:
            raise ValueError("nothing was measured")
        return cls(
            sum(size * n for size, n in counts.items()) / times,
            _rank(counts, math.ceil(times / 2)),
            _rank(counts, math.ceil(times * 0.99)),
            max(counts),
        )


def _rank(counts: Mapping[int, int], rank: int) -> int:
    """The `rank`th smallest, from 1."""
    seen = 0
    for size in sorted(counts):
        seen += counts[size]
        if seen >= rank:
            return size
    return max(counts)
