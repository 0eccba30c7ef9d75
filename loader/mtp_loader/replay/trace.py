"""Recorded routing in memory, whatever file it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mtp_loader.policy.interface import EXPERT_BITS, Event, key_of

PROMPT, DECODE = 0, 1
HintLayers = tuple[tuple[int, tuple[tuple[int, float], ...]], ...]


@dataclass(frozen=True)
class LayerFacts:
    """`bank` layers share slots; `bytes` is what reading one expert moves."""

    layer: int
    bank: int
    experts: int
    top_k: int
    bytes: int


@dataclass(frozen=True)
class Forward:
    """One forward: `events` in layer order, one a layer. `rows` are each layer's experts token by token, as routed.

    `hints` are in the order they were sent. `tokens` is empty where the recording has no ids.
    """

    step: int
    phase: int
    tokens: tuple[int, ...]
    events: tuple[Event, ...]
    rows: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()
    hints: tuple[HintLayers, ...] = ()


@dataclass(frozen=True)
class Trace:
    """`note` says what a reader should know: a torn tail. `fingerprint` is the checkpoint's, where it is known."""

    name: str
    model: str
    layers: Mapping[int, LayerFacts]
    forwards: Sequence[Forward]
    note: str = ""
    fingerprint: str = ""
    events: tuple[Event, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(e for forward in self.forwards for e in forward.events))

    @property
    def banks(self) -> tuple[int, ...]:
        return tuple(sorted({y.bank for y in self.layers.values()}))

    def experts_in(self, bank: int) -> int:
        return sum(y.experts for y in self.layers.values() if y.bank == bank)

    def fault(self) -> str | None:
        """Why this cannot have been recorded from any model; None where it can."""
        if not self.layers:
            return "names no layer"
        for y in self.layers.values():
            counts = (y.layer, y.bank, y.experts, y.top_k, y.bytes)
            if any(type(n) is not int or n < 0 for n in counts):
                return f"describes a layer by {str(counts)[:80]}, which are no counts"
            if not (y.top_k <= y.experts <= 1 << EXPERT_BITS and y.top_k and y.bytes):
                return f"says that layer {y.layer} has {y.experts} experts of {y.bytes} bytes and asks for {y.top_k}"
        for forward in self.forwards:
            if forward.phase not in (PROMPT, DECODE):
                return f"has a forward of the unknown phase {forward.phase}"
            for event in forward.events:
                facts = self.layers.get(event.layer)
                if facts is None or event.layer != facts.layer:
                    return f"routes in layer {str(event.layer)[:40]}, which it does not describe"
                first = key_of(facts.layer, 0)
                if event.keys and not first <= event.keys[0] <= event.keys[-1] < first + facts.experts:
                    return f"names an expert of layer {facts.layer} that is none of its {facts.experts}"
        return None

    def slots(self, share: float) -> dict[int, int]:
        """Slots of each bank at a residency of `share` (0..1) of all experts; rounded down, as a pool would be."""
        return {bank: max(int(self.experts_in(bank) * share), 1) for bank in self.banks}


def event_of(layer: int, rows: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]) -> Event:
    """One layer's tokens as one event: distinct keys, ascending, weights summed over the tokens."""
    total: dict[int, float] = {}
    for experts, of_experts in zip(rows, weights, strict=True):
        for expert, weight in zip(experts, of_experts, strict=True):
            total[expert] = total.get(expert, 0.0) + weight
    chosen = sorted(total)
    return Event(layer, tuple(key_of(layer, e) for e in chosen), tuple(total[e] for e in chosen), len(rows))
