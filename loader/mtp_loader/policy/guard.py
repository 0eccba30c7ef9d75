"""What a pool smaller than one token's demand needs, whatever the policy."""

from collections import OrderedDict
from collections.abc import Container

from mtp_loader.policy.interface import EXPERT_BITS, Event, Policy, Primed


class SmallPoolGuard:
    """Another policy, except while the pool holds less than one forward's demand.

    Layers come in a cycle. When the pool cannot hold one round, any policy that prefers recent experts gives up each
    just before its turn and scores exactly 0 (seen in five runtimes). Then the experts needed last are those of the
    layer that was asked just now, before them the layer before, and so on backwards: these go, and a fixed part of the
    round stays. Within a layer the oldest goes first, so what a layer stopped using does not stay for ever (the order
    is kept up only while it is needed: it costs as much as a policy).
    """

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self._recent: dict[int, OrderedDict[int, None]] = {}
        self._asked: dict[int, int] = {}
        self._demand = 0
        self._held = 0
        self._layer = 0
        if isinstance(inner, Primed):
            self.prime = inner.prime

    def record(self, event: Event) -> None:
        self._inner.record(event)
        self._layer = event.layer
        self._demand += len(event.keys) - self._asked.get(event.layer, 0)
        self._asked[event.layer] = len(event.keys)
        if self._held < self._demand and (order := self._recent.get(event.layer)) is not None:
            for key in event.keys:
                if key in order:
                    order.move_to_end(key)

    def insert(self, key: int) -> None:
        self._inner.insert(key)
        order = self._recent.get(key >> EXPERT_BITS)
        if order is None:
            order = self._recent[key >> EXPERT_BITS] = OrderedDict()
        if key not in order:
            self._held += 1
            order[key] = None

    def remove(self, key: int) -> None:
        self._inner.remove(key)
        order = self._recent.get(key >> EXPERT_BITS)
        if order is not None and key in order:
            del order[key]
            self._held -= 1

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        if self._held >= self._demand:
            return self._inner.victims(n, protected)
        layers = sorted(self._recent, reverse=True)
        after = [layer for layer in layers if layer > self._layer]
        found: list[int] = []
        for layer in [layer for layer in layers if layer <= self._layer] + after:
            for key in self._recent[layer]:
                if len(found) == n:
                    return found
                if key not in protected:
                    found.append(key)
        return found
