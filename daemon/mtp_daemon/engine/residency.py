"""Decode's side of the four slot rules: which expert is in which slot, what graphs read, what may be given up.

    1. A slot's bytes change only while it is FILLING, and only the loader writes them.
    2. It becomes FILLING only from FREE.
    3. It goes from RECALLED to FREE only when the engine that was told of it has released it, or is dead.
    4. The engine may read any slot it was told of. It gives one up only by answering a recall, and answers only when
       no graph that is unevaluated or still running reads it.

Rule 4 is this module. No sockets, no arrays of MLX, no clock: whoever builds a graph says so with `read`, whoever saw
graphs end says so with `finished`, and `release` gives what may be answered. Owned by the MLX thread.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mtp_daemon.engine.errors import EngineBug
from mtp_protocol.expert_messages import Resident
from mtp_protocol.geometry import Geometry, PoolLayout

Slots = NDArray[np.int32]
ABSENT = -1


class Residency:
    """The engine's authoritative map, expert to slot."""

    def __init__(self, geometry: Geometry, layout: PoolLayout) -> None:
        self.bank_of = {y.layer: y.bank for y in geometry.layers}
        self.slots = [b.slots for b in layout.banks]
        self._limits = list(self.slots)  # of these, how many the loader uses
        self._tables = {y.layer: np.full(y.experts, ABSENT, np.int32) for y in geometry.layers}
        self._owner: list[dict[int, tuple[int, int]]] = [{} for _ in layout.banks]
        # The mark under which a graph was last built that reads the slot; 0: none is unevaluated or running.
        self._reading = [np.zeros(b.slots, np.int64) for b in layout.banks]
        self._recalled: list[set[int]] = [set() for _ in layout.banks]
        self._unusable = {y.layer: y.experts for y in geometry.layers}  # experts absent or recalled
        self._partial = set(self._unusable)  # layers with any
        self.in_use: set[int] = set()  # layers that a model reads: a head's may lie unused in the geometry
        self.versions = dict.fromkeys(self._tables, 0)
        self.mark = 1

    def table(self, layer: int) -> Slots:
        """Slot of each expert of `layer`, ABSENT where it is not resident. Read only."""
        return self._tables[layer]

    def whole(self, layer: int) -> bool:
        """Every expert of `layer` is resident and none of their slots is recalled."""
        return not self._unusable[layer]

    @property
    def all_whole(self) -> bool:
        """Every layer that is in use is whole."""
        return bool(self.in_use) and self.in_use.isdisjoint(self._partial)

    def capacity(self, layer: int) -> int:
        """Slots that a wave of this layer may fill and hold together."""
        return self._limits[self.bank_of[layer]]

    @property
    def resident(self) -> int:
        """Experts that the engine may read."""
        return sum(len(owner) for owner in self._owner)

    @property
    def recalls_pending(self) -> int:
        return sum(len(r) for r in self._recalled)

    # -- what graphs read ------------------------------------------------------------------------------------------

    def read(self, layer: int, slots: Slots) -> None:
        """A graph that reads these slots of `layer`'s bank is being built."""
        self._reading[self.bank_of[layer]][slots] = self.mark

    def next_mark(self) -> int:
        """From now on `read` marks anew; `finished(before=…)` can then tell older graphs from newer ones."""
        self.mark += 1
        return self.mark

    def finished(self, before: int | None = None) -> None:
        """No graph built (before that mark) is unevaluated or running."""
        for reading in self._reading:
            if before is None:
                reading.fill(0)
            else:
                reading[reading < before] = 0

    def held(self, layer: int) -> tuple[int, ...]:
        """Slots of the layer's bank that graphs read now."""
        return tuple(np.flatnonzero(self._reading[self.bank_of[layer]]).tolist())

    # -- what the loader says --------------------------------------------------------------------------------------

    def fill(self, experts: Iterable[Resident]) -> list[Resident]:
        """These experts are resident. Returns those that were news.

        The same may be told twice (a demand and a prefetch cross on the way). An expert whose slot is recalled may be
        told in another slot: from now on it is read there. Raises EngineBug for anything else that does not fit the
        map.
        """
        news = []
        for told in experts:
            bank = self._bank(told.layer, told.slot)
            table = self._tables[told.layer]
            if not 0 <= told.expert < len(table):
                raise EngineBug(f"layer {told.layer} has no expert {told.expert}")
            before = int(table[told.expert])
            if before == told.slot:
                continue
            if (owner := self._owner[bank].get(told.slot)) is not None:
                raise EngineBug(f"slot {told.slot} of bank {bank} was filled while it still held {owner}")
            if before != ABSENT and before not in self._recalled[bank]:
                raise EngineBug(f"expert {told.expert} of layer {told.layer} is in two slots")
            table[told.expert] = told.slot
            self._owner[bank][told.slot] = (told.layer, told.expert)
            self._usable(told.layer, 1)
            news.append(told)
        return news

    def recall(self, bank: int, slots: Sequence[int]) -> list[int]:
        """The loader wants these back. Returns those that the engine was not told of: nothing reads them."""
        unknown = []
        for slot in slots:
            owner = self._owner[bank].get(slot)
            if owner is None:
                unknown.append(slot)
            elif slot not in self._recalled[bank]:
                self._recalled[bank].add(slot)
                self._usable(owner[0], -1)
        return unknown

    def release(self) -> list[tuple[int, tuple[int, ...]]]:
        """Give up every recalled slot that no graph reads: `(bank, slots)` to answer with. The map forgets them."""
        given = []
        for bank, recalled in enumerate(self._recalled):
            if not recalled:
                continue
            free = tuple(sorted(s for s in recalled if not self._reading[bank][s]))
            for slot in free:
                layer, expert = self._owner[bank].pop(slot)
                if self._tables[layer][expert] == slot:
                    self._tables[layer][expert] = ABSENT
                    self.versions[layer] += 1
                recalled.discard(slot)
            if free:
                given.append((bank, free))
        return given

    def limit(self, slots: Sequence[int]) -> None:
        """The loader uses that many slots of each bank from now on."""
        if len(slots) != len(self.slots) or any(not 0 < n <= all_ for n, all_ in zip(slots, self.slots, strict=True)):
            raise EngineBug(f"limits {tuple(slots)} for banks of {tuple(self.slots)} slots")
        self._limits = list(slots)

    def drop(self) -> None:
        """Forget everything: a new loader owns the slots. Raises EngineBug while a graph reads any."""
        if any(reading.any() for reading in self._reading):
            raise EngineBug("the map was dropped while a graph reads slots of it")
        for owner, recalled in zip(self._owner, self._recalled, strict=True):
            owner.clear()
            recalled.clear()
        self._limits = list(self.slots)
        for layer, table in self._tables.items():
            table.fill(ABSENT)
            self.versions[layer] += 1
            self._unusable[layer] = len(table)
        self._partial = set(self._tables)

    def _bank(self, layer: int, slot: int) -> int:
        bank = self.bank_of.get(layer)
        if bank is None or not 0 <= slot < self.slots[bank]:
            raise EngineBug(f"slot {slot} for layer {layer}: no such layer or slot")
        return bank

    def _usable(self, layer: int, more: int) -> None:
        before = self._unusable[layer]
        after = self._unusable[layer] = before - more
        self.versions[layer] += 1
        if not after:
            self._partial.discard(layer)
        elif not before:
            self._partial.add(layer)
