"""Belady's clairvoyant: the bound that every policy is printed beside."""

from bisect import bisect_right
from collections.abc import Container, Sequence

from mtp_loader.policy.interface import Event
from mtp_loader.policy.lazy_heap import LazyHeap

_NEVER = float("inf")


class Belady:
    """Gives up what is needed again last (Belady 1966; optimal as every miss costs the same).

    `future` is every event that will be recorded, in that order; the policy is useless to a running service.
    """

    def __init__(self, future: Sequence[Event]) -> None:
        self._uses: dict[int, list[int]] = {}
        for index, event in enumerate(future):
            for key in event.keys:
                self._uses.setdefault(key, []).append(index)
        self._index = -1
        self._heap = LazyHeap()

    def record(self, event: Event) -> None:
        self._index += 1
        for key in event.keys:
            if key in self._heap.rank:
                self._heap.put(key, -self._next_use(key))

    def insert(self, key: int) -> None:
        if key not in self._heap.rank:
            self._heap.put(key, -self._next_use(key))

    def remove(self, key: int) -> None:
        self._heap.discard(key)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        return self._heap.lowest(n, protected)

    def _next_use(self, key: int) -> float:
        uses = self._uses.get(key, [])
        at = bisect_right(uses, self._index)
        return uses[at] if at < len(uses) else _NEVER
