"""Least frequently used within a layer, layers holding equal shares."""

from collections.abc import Container
from heapq import heapify, heappop, heapreplace

from mtp_loader.policy.interface import Event, layer_of
from mtp_loader.policy.lazy_heap import LazyHeap

_NEWER = 2.0**-40


class LayerLfu:
    """Takes from the layer that holds most (the asking layer where that ties) its least used expert, over all history.

    Full-history counts are slow to follow a change of topic; here as the published baseline.
    """

    def __init__(self) -> None:
        self._uses: dict[int, float] = {}
        self._layers: dict[int, LazyHeap] = {}
        self._asking = -1
        self._events = 0

    def record(self, event: Event) -> None:
        self._asking = event.layer
        self._events += 1
        for key in event.keys:
            uses = int(self._uses.get(key, 0.0)) + 1
            self._uses[key] = uses + self._events * _NEWER  # of equally used ones the oldest goes first
            heap = self._layers.get(event.layer)
            if heap is not None and key in heap.rank:
                heap.put(key, self._uses[key])

    def insert(self, key: int) -> None:
        heap = self._layers.setdefault(layer_of(key), LazyHeap())
        if key not in heap.rank:
            heap.put(key, self._uses.get(key, 1.0))

    def remove(self, key: int) -> None:
        heap = self._layers.get(layer_of(key))
        if heap is not None:
            heap.discard(key)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        held = [(-len(y.rank), i != self._asking, i) for i, y in self._layers.items() if y.rank]
        heapify(held)
        taken: dict[int, list[int]] = {}
        found: list[int] = []
        while held and len(found) < n:
            size, other, layer = held[0]
            if layer not in taken:
                taken[layer] = self._layers[layer].lowest(n - len(found), protected)[::-1]
            if not taken[layer]:
                heappop(held)
                continue
            found.append(taken[layer].pop())
            heapreplace(held, (size + 1, other, layer))
        return found
