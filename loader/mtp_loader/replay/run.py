"""One policy on one recording: the loader's rule for demands, and nothing else.

For each event: the policy is told of it; if its misses and the reserve need more slots than are free, the policy's
victims leave, all chosen in one go with the event's own experts protected; then the misses come in, ascending. This is
what the loader's slot table does when every recall is answered at once, and the tests hold the two to the same numbers.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

from mtp_loader.policy.interface import Event, Policy, layer_of
from mtp_loader.pool.layout import reserve_slots
from mtp_loader.replay.trace import DECODE, PROMPT, Forward, LayerFacts, Trace

MakePolicy = Callable[[Sequence[Event]], Policy]
"""Given a bank's events of the whole recording (only a clairvoyant looks), a fresh policy for that bank."""


@dataclass
class Tally:
    """Counts of one phase. `hits + misses == requests`; `read_bytes` is the misses times their layers' sizes.

    `events` are layers that ran: a forward without speculation does not run the MTP head's.
    """

    forwards: int = 0
    events: int = 0
    tokens: int = 0
    requests: int = 0
    hits: int = 0
    misses: int = 0
    read_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hits / max(self.requests, 1)


@dataclass
class Residency:
    """One bank's slots in a replay. The service's own table has states and messages; here a key is resident or not."""

    slots: int
    reserve: int
    policy: Policy
    resident: set[int] = field(default_factory=set)
    pinned: frozenset[int] = frozenset()
    left: list[int] = field(default_factory=list)  # the last request's victims
    announced: set[int] = field(default_factory=set)  # prefetched, and their layer is still to come: no victims

    def __post_init__(self) -> None:
        self.resident.update(self.pinned)

    def request(self, event: Event) -> list[int]:
        """Serves the event; its misses, ascending. Waves where the event alone is larger than the bank."""
        self.policy.record(event)
        resident = self.resident
        missing = [key for key in event.keys if key not in resident]
        self.left = []
        if missing:
            usable = max(self.slots - len(self.pinned), 1)
            if len(event.keys) <= usable:
                self._bring(missing, event.keys)
            else:
                for start in range(0, len(missing), usable):
                    self._bring(missing[start : start + usable], ())
        return missing

    def prefetch(self, key: int) -> bool:
        """Takes a FREE slot for `key`, ahead of any demand, and frees another for the reserve; false where none is."""
        if len(self.resident) >= self.slots:
            return False
        self.policy.insert(key)
        self.resident.add(key)
        self.announced.add(key)
        self.left = []
        self._give_up(0, ())
        return True

    def take_back(self, key: int) -> None:
        """The prefetch did not begin: its slot is FREE again."""
        self.policy.remove(key)
        self.resident.discard(key)
        self.announced.discard(key)

    def _bring(self, missing: list[int], held: Collection[int]) -> None:
        self._give_up(len(missing), held)
        for key in missing:
            self.policy.insert(key)
            self.resident.add(key)

    def _give_up(self, missing: int, held: Container[int]) -> None:
        count = missing + self.reserve - (self.slots - len(self.resident))
        if count <= 0:
            return
        victims = self.policy.victims(count, _Either(held, self.announced) if self.announced else held)
        if len(victims) < count and self.announced:
            self.announced.clear()  # rather a guess than a demand that finds no slot
            victims = self.policy.victims(count, held)
        self.left += victims
        for victim in victims:
            self.policy.remove(victim)
            self.resident.discard(victim)


class _Either:
    def __init__(self, held: Container[int], announced: Container[int]) -> None:
        self._held, self._announced = held, announced

    def __contains__(self, key: object) -> bool:
        return key in self._held or key in self._announced


def replay(
    trace: Trace,
    make: MakePolicy,
    slots: Mapping[int, int],
    reserve: int = 0,
    pins: Collection[int] = (),
) -> dict[int, Tally]:
    """Tallies by phase. `slots` and `reserve` are per bank; `pins` are resident from the start and never leave."""
    banks = make_banks(trace, make, slots, reserve, pins)
    bank_of = {y.layer: banks[y.bank] for y in trace.layers.values()}
    tallies = {PROMPT: Tally(), DECODE: Tally()}
    for forward in trace.forwards:
        tally = tallies[forward.phase]
        tally.forwards += 1
        tally.events += len(forward.events)
        tally.tokens += token_count(forward)
        for event in forward.events:
            missing = bank_of[event.layer].request(event)
            tally.requests += len(event.keys)
            tally.misses += len(missing)
            if missing:
                tally.read_bytes += len(missing) * trace.layers[event.layer].bytes
    for tally in tallies.values():
        tally.hits = tally.requests - tally.misses
    return tallies


def make_banks(
    trace: Trace, make: MakePolicy, slots: Mapping[int, int], reserve: int | None, pins: Collection[int]
) -> dict[int, Residency]:
    """A fresh residency for each bank of the recording. `reserve` None: what the loader would keep by itself."""
    layers: Mapping[int, LayerFacts] = trace.layers
    banks = {}
    for bank in trace.banks:
        pinned = frozenset(key for key in pins if layers[layer_of(key)].bank == bank)
        future = [e for e in trace.events if layers[e.layer].bank == bank]
        minimum = max(y.top_k for y in layers.values() if y.bank == bank)
        kept = reserve_slots(reserve, slots[bank], minimum, trace.experts_in(bank))
        banks[bank] = Residency(slots[bank], kept, make(future), pinned=pinned)
    return banks


def token_count(forward: Forward) -> int:
    return len(forward.tokens) or max((e.tokens for e in forward.events), default=0)
