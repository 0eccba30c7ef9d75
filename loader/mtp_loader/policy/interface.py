"""What an eviction policy is told, and the one question it answers.

A policy holds no clock, does no I/O and knows no slots. Its experts are keys: `key_of(layer, expert)`. One instance
serves one bank of the pool. Time is counted in events: a forward visits the layers in rising order, so a layer that
does not rise starts the next forward (`ForwardClock`).
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

EXPERT_BITS = 16


def key_of(layer: int, expert: int) -> int:
    return layer << EXPERT_BITS | expert


def layer_of(key: int) -> int:
    return key >> EXPERT_BITS


def expert_of(key: int) -> int:
    return key & (1 << EXPERT_BITS) - 1


@dataclass(frozen=True, slots=True)
class Event:
    """All experts one layer needed in one forward, as one request.

    `keys` are distinct. `weights[i]` is the router's weight of `keys[i]`, summed over the forward's tokens; empty where
    it is not known. `tokens` is how many tokens the forward carried. Taking the experts one by one instead would let
    an expert evict its own neighbour and would count a policy's hits wrongly (LRU gains 27 % so).
    """

    layer: int
    keys: tuple[int, ...]
    weights: tuple[float, ...] = ()
    tokens: int = 1


class Policy(Protocol):
    """Ranks a bank's candidates for eviction.

    A *candidate* is an expert that was inserted and not removed since. Experts that may not leave (pinned, being
    filled, already recalled) are simply not candidates: `remove` them, and `insert` them again when they may.
    """

    def record(self, event: Event) -> None:
        """Every request, hits and misses alike, before its misses are inserted."""

    def insert(self, key: int) -> None:
        """`key` is resident and may be given up from now on; inserting a candidate again changes nothing."""

    def remove(self, key: int) -> None:
        """`key` is no candidate any more; what was learned about it may stay. Unknown keys are ignored."""

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        """Up to `n` distinct candidates outside `protected`, the best to give up first.

        Changes nothing that a later answer could show. Fewer than `n` come back only when there are no more. The cost
        grows with `n` and with how many protected ones rank low, never with the pool.
        """


@runtime_checkable
class Primed(Protocol):
    """A policy that can begin with what an earlier run learned."""

    def prime(self, layer: int, frequencies: Sequence[float]) -> None:
        """Before the first event: in which share of the layer's visits each expert was asked for."""


class ForwardClock:
    """Counts forwards by the order of layers: a layer that does not rise begins the next one."""

    def __init__(self) -> None:
        self.forwards = 0
        self._layer = 1 << 30

    def tick(self, layer: int) -> bool:
        """Takes an event's layer; True when it begins a forward."""
        began = layer <= self._layer
        self._layer = layer
        self.forwards += began
        return began
