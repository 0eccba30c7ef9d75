"""A priority queue of keys whose ranks change: stale entries stay in the heap until they come to the top."""

from collections.abc import Container
from heapq import heapify, heappop, heappush

_SLACK = 64


class LazyHeap:
    """Keys by rank, lowest first, ties by key. A change costs O(log n); memory is a few times the live keys."""

    def __init__(self) -> None:
        self.rank: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, key: int, rank: float) -> None:
        """Adds `key` or gives it a new rank."""
        self.rank[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > 4 * len(self.rank) + _SLACK:
            self._heap = [(r, k) for k, r in self.rank.items()]
            heapify(self._heap)

    def discard(self, key: int) -> None:
        self.rank.pop(key, None)

    def lowest(self, n: int, protected: Container[int]) -> list[int]:
        """The `n` lowest live keys outside `protected`; the queue's content is unchanged."""
        found: list[int] = []
        popped: list[tuple[float, int]] = []
        while self._heap and len(found) < n:
            entry = heappop(self._heap)
            rank, key = entry
            if self.rank.get(key) != rank or (popped and popped[-1] == entry):
                continue
            popped.append(entry)
            if key not in protected:
                found.append(key)
        for entry in popped:
            heappush(self._heap, entry)
        return found
