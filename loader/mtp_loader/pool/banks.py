"""The banks of one pool side by side: slots each may use, what is pinned in them, what they count. Pure."""

from collections import ChainMap
from collections.abc import Container, Iterable, Sequence

from mtp_loader.policy.interface import Policy, key_of
from mtp_loader.pool.bank import BankSlots
from mtp_loader.pool.demand import SlotCounters
from mtp_loader.pool.effects import Effect
from mtp_loader.pool.states import State
from mtp_protocol.geometry import Geometry, PoolLayout


class Banks:
    """`banks[i]` serves bank i of the geometry; all append to one list of effects."""

    def __init__(
        self, geometry: Geometry, layout: PoolLayout, policies: Sequence[Policy], reserve: int | None, pin_share: float
    ) -> None:
        self._effects: list[Effect] = []
        self.banks = [
            BankSlots(bank, placed.slots, geometry, policy, reserve, self._effects)
            for bank, placed, policy in zip(geometry.banks, layout.banks, policies, strict=True)
        ]
        self._layers = {layer.layer: layer for layer in geometry.layers}
        self._pin_share = pin_share

    def bank_of(self, layer: int) -> BankSlots | None:
        """The bank of a MoE layer; None for another number."""
        found = self._layers.get(layer)
        return None if found is None else self.banks[found.bank]

    @property
    def present(self) -> Container[int]:
        """The keys that are resident or being read."""
        return ChainMap(*(bank.slots.slot_of for bank in self.banks))

    @property
    def prefetches_under_way(self) -> int:
        return sum(not fill.demand for bank in self.banks for fill in bank.fills.values())

    @property
    def counters(self) -> SlotCounters:
        return sum((bank.counters for bank in self.banks), SlotCounters())

    def count(self, state: State) -> int:
        """How many slots of all banks are in `state`."""
        return sum(bank.slots.count[state] for bank in self.banks)

    @property
    def most_pinned(self) -> float:
        """The largest share of every bank's slots that pins may take."""
        return min((self._pin_room(bank) / bank.slots.limit for bank in self.banks), default=0.0)

    def _pin_room(self, bank: BankSlots) -> int:
        limit = bank.slots.limit
        return max(0, min(int(limit * self._pin_share), limit - bank.minimum - bank.reserve))

    @property
    def limits(self) -> tuple[int, ...]:
        """Slots of each bank that may be used."""
        return tuple(bank.slots.limit for bank in self.banks)

    def _set_limits(self, limits: Sequence[int]) -> str | None:
        """Only slots below these limits are used from now on. Returns why not, changing nothing, if it cannot be."""
        if len(limits) != len(self.banks):
            return f"the pool has {len(self.banks)} banks, not {len(limits)}"
        for bank, limit in zip(self.banks, limits, strict=True):
            if not bank.minimum <= limit <= len(bank.slots.state):
                return f"bank {bank.bank} works with {bank.minimum} to {len(bank.slots.state)} slots, not {limit}"
        for bank, limit in zip(self.banks, limits, strict=True):
            bank.slots.set_limit(limit)
        return None

    def _set_pins(self, experts: Iterable[tuple[int, int]]) -> None:
        """Exactly these are pinned, as far as the pins' share goes."""
        wanted: list[list[int]] = [[] for _ in self.banks]
        for layer, expert in dict.fromkeys(experts):
            if layer in self._layers and 0 <= expert < self._layers[layer].experts:
                wanted[self._layers[layer].bank].append(key_of(layer, expert))
        for bank, keys in zip(self.banks, wanted, strict=True):
            bank.pin(keys[: self._pin_room(bank)])
