"""Least frequently, recently used: uses over age."""

from collections import OrderedDict
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heapreplace
from math import log2

from mtp_loader.policy.interface import Event

_EXACT = 64
_STEPS_PER_OCTAVE = 16


class Lfru:
    """Gives up the lowest `uses / (age + 1)`, ages in forwards with their fraction (events over events a forward).

    Two ranks cross as time passes, so no one order holds for long; but among equally used experts the oldest always
    ranks lowest. So each use count has its own queue, oldest first, and only the queues' heads are compared. Counts
    past 64 share queues of 1/16 octave, which bounds the number of queues whatever the pool.
    """

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._queues: dict[int, OrderedDict[int, None]] = {}
        self._in: dict[int, int] = {}
        self._now = 0
        self._began: list[int] = [0, 0]
        self._layer = 1 << 30

    def record(self, event: Event) -> None:
        if event.layer <= self._layer:
            self._began = [self._began[1], self._now]
        self._layer = event.layer
        self._now += 1
        for key in event.keys:
            self._uses[key] = self._uses.get(key, 0) + 1
            self._last[key] = self._now
            if key in self._in:
                self._leave(key)
                self._enter(key)

    def insert(self, key: int) -> None:
        if key not in self._in:
            if key not in self._uses:
                self._uses[key], self._last[key] = 1, self._now
            self._enter(key)

    def remove(self, key: int) -> None:
        if key in self._in:
            self._leave(key)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        forward = max(self._began[1] - self._began[0], 1)
        uses, last, now = self._uses, self._last, self._now + forward
        heads: list[tuple[float, int, Iterator[int]]] = []
        for queue in self._queues.values():
            walk = iter(queue)
            for key in walk:
                if key not in protected:
                    heads.append((uses[key] / (now - last[key]), key, walk))
                    break
        heapify(heads)
        found: list[int] = []
        while heads and len(found) < n:
            _, key, walk = heads[0]
            found.append(key)
            for key in walk:
                if key not in protected:
                    heapreplace(heads, (uses[key] / (now - last[key]), key, walk))
                    break
            else:
                heappop(heads)
        return found

    def _enter(self, key: int) -> None:
        uses = self._uses[key]
        index = uses if uses <= _EXACT else _EXACT + int((log2(uses) - 6.0) * _STEPS_PER_OCTAVE)
        self._in[key] = index
        self._queues.setdefault(index, OrderedDict())[key] = None

    def _leave(self, key: int) -> None:
        index = self._in.pop(key)
        queue = self._queues[index]
        del queue[key]
        if not queue:
            del self._queues[index]
