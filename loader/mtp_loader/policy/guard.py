"""What a pool smaller than one token's demand needs, whatever the policy."""

from collections.abc import Container
from heapq import nsmallest

from mtp_loader.policy.interface import EXPERT_BITS, Event, Policy, Primed


class SmallPoolGuard:
    """Another policy, except while the pool holds less than one forward's demand.

    Layers come in a cycle. When the pool cannot hold one round, any policy that prefers recent experts gives up each
    just before its turn and scores exactly 0 (seen in five runtimes). Then the experts needed last are those of the
    layer that was asked just now, before them the layer before, and so on backwards: these go, and a fixed part of the
    round stays. Within a layer the one that came first goes first, so what a layer stopped using does not stay for
    ever. That search goes through the pool, which is smaller than a token's demand then.
    """

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self._held: dict[int, None] = {}  # in the order they came
        self._asked: dict[int, int] = {}
        self._demand = 0
        self._layer = 0
        if isinstance(inner, Primed):
            self.prime = inner.prime

    def record(self, event: Event) -> None:
        self._inner.record(event)
        layer = self._layer = event.layer
        asked = len(event.keys)
        before = self._asked.get(layer, 0)
        if asked != before:
            self._demand += asked - before
            self._asked[layer] = asked

    def insert(self, key: int) -> None:
        self._inner.insert(key)
        self._held.setdefault(key, None)

    def remove(self, key: int) -> None:
        self._inner.remove(key)
        self._held.pop(key, None)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        if len(self._held) >= self._demand:
            return self._inner.victims(n, protected)
        layer, round_ = self._layer, 1 << EXPERT_BITS
        candidates = (key for key in self._held if key not in protected)
        return nsmallest(n, candidates, key=lambda key: (layer - (key >> EXPERT_BITS)) % round_)
