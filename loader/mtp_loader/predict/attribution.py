"""Why a miss was a miss, and what became of each prefetched expert."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Literal

Outcome = Literal["covered", "displaced", "as without"]


@dataclass
class Attribution:
    """Counts since the start. Misses split into the three kinds; `useful + wasted` of the prefetched have ended.

    Predicted is what the gate let through: a chance too small to be read for is no prediction. `late` experts were
    predicted, but not resident when they were needed: no slot, no time, or, as `late_reads` of them, still being read.
    """

    hits: int = 0
    never_predicted: int = 0
    late: int = 0
    evicted_again: int = 0
    prefetched: int = 0
    useful: int = 0
    late_reads: int = 0
    wasted: int = 0

    @property
    def misses(self) -> int:
        return self.never_predicted + self.late + self.evicted_again

    @property
    def coverage(self) -> float:
        """Of the misses there would have been, the share that prefetching turned into hits."""
        return self.useful / max(self.useful + self.misses, 1)

    @property
    def waste(self) -> float:
        """Wasted reads a right one: a demand that found its read begun waited for the rest of it only."""
        return self.wasted / max(self.useful + self.late_reads, 1)

    def facts(self) -> dict[str, float]:
        return {**asdict(self), "misses": self.misses, "coverage": self.coverage, "wasted_per_useful": self.waste}


class Attributor:
    """Follows predictions and prefetches. Told of every request, so its counts add up: hits + misses == requests."""

    def __init__(self) -> None:
        self.counts = Attribution()
        self._predicted: set[int] = set()
        self._unused: set[int] = set()
        self._lost: set[int] = set()
        self._owing: deque[int] = deque()  # prefetches that took a slot, and no victim has left for them yet
        self._left_for: dict[int, int] = {}  # victim -> the prefetch that it left for

    def forward(self) -> None:
        """A forward begins: what was predicted and lost in the last one counts no more."""
        self._predicted.clear()
        self._lost.clear()

    def predicted(self, key: int) -> None:
        self._predicted.add(key)

    def prefetched(self, key: int) -> None:
        """A read of `key` was begun ahead of any demand."""
        self.counts.prefetched += 1
        self._unused.add(key)
        self._owing.append(key)

    def cancelled(self, key: int) -> None:
        """The prefetch was taken back before its read began."""
        if key in self._unused:
            self._unused.discard(key)
            self.counts.prefetched -= 1
            self._settle(key)

    def evicted(self, key: int) -> None:
        """`key` leaves the pool. Each prefetch took a slot, so one of the next victims leaves because of it."""
        if self._owing:
            self._left_for[key] = self._owing.popleft()
        if key in self._unused:
            self._unused.discard(key)
            self.counts.wasted += 1
            self._lost.add(key)

    def request(self, key: int, *, resident: bool) -> Outcome:
        """An expert was needed; `resident` when it was there in time. What prefetching did to it."""
        displaced = self._left_for.pop(key, None) is not None
        prefetched = key in self._unused
        if prefetched:  # as a demand it would have taken a slot too: whoever left for it would have left anyway
            self._unused.discard(key)
            self._settle(key)
        lost = key in self._lost
        self._lost.discard(key)
        if resident:
            self.counts.hits += 1
            self.counts.useful += prefetched
            return "covered" if prefetched else "as without"
        if prefetched or key in self._predicted:
            self.counts.late += 1
            self.counts.late_reads += prefetched
        elif lost:
            self.counts.evicted_again += 1
        else:
            self.counts.never_predicted += 1
        return "displaced" if displaced and not prefetched else "as without"

    def _settle(self, key: int) -> None:
        """No victim is this prefetch's fault."""
        if key in self._owing:
            self._owing.remove(key)
        for victim in [victim for victim, prefetch in self._left_for.items() if prefetch == key]:
            del self._left_for[victim]
