"""The rule by which requests become a policy's events. Pure; the running loader and a replay follow it alike.

A *request* is one expert that one layer needed in one forward. The engine tells of every layer's whole event once, in
the order in which they ran: in the next `Need` (its `events`, this layer's own last), or, where no Need follows, in the
forward's `Used`. So an event is recorded before its misses are inserted, and no victim is chosen on stale history: a
replay that goes through the recorded forwards layer by layer sees the same.

    for each layer of a forward, E = its distinct experts, sorted, M = those not resident, f = FREE slots, r = reserve:
        policy.record(Event(layer, E, (), tokens))
        if M: victims(len(M) + r - f, protected=E) are removed in one go, then M is inserted in order

`insert` happens when a slot starts to fill and `remove` when its recall is sent, so neither depends on how long reads
and answers take.
"""

from collections.abc import Iterable

from mtp_loader.policy.interface import Event, key_of
from mtp_protocol.expert_messages import Need, Used

_PROMPT = 0  # a Used's phase


class RequestLedger:
    """Turns messages into events and adds up. `requests` are those told of; the engine counts which of them hit.

    When every forward told of has been reported by its Used, `requests == hits + misses`.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.hits = 0
        self.misses = 0
        self.forwards = 0
        self.events = 0

    @property
    def open_requests(self) -> int:
        """Requests of forwards whose Used is still to come."""
        return self.requests - self.hits - self.misses

    def need(self, need: Need) -> list[Event]:
        """What the policies are to be told before the Need's misses are inserted."""
        return [self._event(layer, experts, tokens) for layer, tokens, experts in need.events]

    def used(self, used: Used) -> list[Event]:
        """A forward has been reported: the events that no Need told of."""
        self.forwards += 1
        self.hits += used.hits
        self.misses += used.misses
        events = self._late(used)
        # A forward that began with another loader was told of there.
        self.requests = max(self.requests, self.hits + self.misses)
        return events

    def _late(self, used: Used) -> list[Event]:
        late = used.routing[used.told :]
        events = [self._event(layer, {e for row in rows for e in row}, len(used.tokens)) for layer, rows, _ in late]
        if used.phase == _PROMPT:  # of a long prompt Used names the last rows only, and its hits and misses are of all
            self.requests = max(self.requests, self.hits + self.misses)
        return events

    def abandon(self) -> None:
        """What is not reported now never will be: its engine is gone."""
        self.requests = self.hits + self.misses

    def _event(self, layer: int, experts: Iterable[int], tokens: int) -> Event:
        keys = tuple(sorted({key_of(layer, expert) for expert in experts}))
        self.requests += len(keys)
        self.events += 1
        return Event(layer, keys, (), tokens)
