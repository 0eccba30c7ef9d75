"""The rule by which requests become a policy's events. Pure; the running loader and a replay follow it alike.

A *request* is one expert that one layer needed in one forward. The engine tells of a layer without a miss in the next
`Need` (its `passed`) or in the forward's `Used`; of a layer with one in the `Need` itself, whose `held_slots` are the
hits. So every request is recorded once, layers in the order in which they ran, and an event is recorded before its
misses are inserted: a replay that goes through the recorded forwards layer by layer sees the same events.

    for each layer of a forward, E = its distinct experts, sorted, M = those not resident, f = FREE slots,
    r = min(reserve, experts in the bank's layers - resident ones - len(M)):
        policy.record(Event(layer, E, (), tokens))
        if M: victims(len(M) + r - f, protected=E) are removed in one go, then M is inserted in order

`insert` happens when a slot starts to fill and `remove` when its recall is sent, so neither depends on how long reads
and answers take. Weights are known with `Used` only: policies that want them offer `weigh(event)`.

A wave is recorded as the part of its layer's event that was not recorded before; a Need that is sent again, or for a
read that failed, adds nothing.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from mtp_loader.policy.interface import Event, key_of
from mtp_protocol.expert_messages import Used


@runtime_checkable
class Weighing(Protocol):
    """A policy that wants the router's weights, which come at the forward's end."""

    def weigh(self, event: Event) -> None:
        """A layer's whole event with its weights; it was recorded before."""


class RequestLedger:
    """What of the forward under way is recorded, and the totals: `requests == hits + misses` at all times."""

    def __init__(self) -> None:
        self.requests = 0
        self.hits = 0
        self.misses = 0
        self.forwards = 0
        self._seen: dict[int, set[int]] = {}

    def passed(self, layer: int, experts: Iterable[int], tokens: int) -> Event | None:
        """A layer in which nothing missed."""
        return self._event(layer, (key_of(layer, e) for e in experts), (), tokens)

    def need(self, layer: int, held: Iterable[int], missed: Iterable[int], tokens: int) -> Event | None:
        """A wave with misses: the keys of its held slots (others than this layer's are skipped) and experts missed."""
        hits = (key for key in held if key >> 16 == layer)
        return self._event(layer, hits, (key_of(layer, e) for e in missed), tokens)

    def used(self, used: Used) -> list[Event]:
        """The forward is over: the events nobody told of before, in the layers' order."""
        late = []
        for layer, rows, _weights in used.routing:
            event = self._event(layer, (key_of(layer, e) for row in rows for e in row), (), len(used.tokens))
            if event is not None:
                late.append(event)
        self.forwards += 1
        self._seen.clear()
        return late

    def abandon(self) -> None:
        """The forward under way will never end: its engine is gone."""
        self._seen.clear()

    def _event(self, layer: int, hits: Iterable[int], misses: Iterable[int], tokens: int) -> Event | None:
        seen = self._seen.setdefault(layer, set())
        missed = set(misses) - seen
        keys = (set(hits) - seen) | missed
        if not keys:
            return None
        seen |= keys
        self.requests += len(keys)
        self.misses += len(missed)
        self.hits += len(keys - missed)
        return Event(layer, tuple(sorted(keys)), (), tokens)


def weighed_events(used: Used) -> list[Event]:
    """Each layer's whole event with its router weights, summed over the forward's tokens."""
    events = []
    for layer, rows, weights in used.routing:
        total: dict[int, float] = {}
        for row, row_weights in zip(rows, weights, strict=False):
            for expert, weight in zip(row, row_weights, strict=False):
                total[expert] = total.get(expert, 0.0) + weight
        experts = sorted(total)
        keys = tuple(key_of(layer, e) for e in experts)
        events.append(Event(layer, keys, tuple(total[e] for e in experts), len(used.tokens)))
    return events
