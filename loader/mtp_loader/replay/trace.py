"""Recorded routing in memory, whatever file it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mtp_loader.policy.interface import Event, key_of

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
