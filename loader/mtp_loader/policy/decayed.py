"""Decayed frequency: every use counts 1 and is worth half as much after each half-life."""

from collections.abc import Container
from math import exp2, log2

from mtp_loader.policy.interface import Event, ForwardClock
from mtp_loader.policy.lazy_heap import LazyHeap


class DecayedFrequency:
    """Gives up the lowest sum of `2 ** (-age / half_life)` over an expert's uses.

    Ages are in forwards, one token each in plain decode. Kept as `log2` of the sum seen from time zero: comparing two
    keys then needs no decay at all, so a rank changes only when its expert is used. What is no candidate keeps its
    history.
    """

    def __init__(self, half_life: float = 16.0) -> None:
        self._half_life = half_life
        self._clock = ForwardClock()
        self._score: dict[int, float] = {}
        self._heap = LazyHeap()

    def record(self, event: Event) -> None:
        self._clock.tick(event.layer)
        now = self._clock.forwards / self._half_life
        for key in event.keys:
            old = self._score.get(key)
            score = now if old is None else now + log2(1.0 + exp2(max(old - now, -1000.0)))
            self._score[key] = score
            if key in self._heap.rank:
                self._heap.put(key, score)

    def insert(self, key: int) -> None:
        if key not in self._heap.rank:
            self._heap.put(key, self._score.get(key, self._clock.forwards / self._half_life))

    def remove(self, key: int) -> None:
        self._heap.discard(key)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        return self._heap.lowest(n, protected)
