"""Decode's side of the four slot rules under random interleavings: a loader, a map, and graphs that read it."""

from collections.abc import Iterable

import numpy as np
import pytest
from _pytest.outcomes import Failed
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mtp_daemon.engine.errors import EngineBug
from mtp_daemon.engine.residency import ABSENT, Residency
from mtp_protocol.expert_messages import Resident
from mtp_protocol.geometry import Bank, BankLayout, Geometry, Layer, PoolLayout, Quantisation

Q = Quantisation()
LAYERS = (Layer(0, 0, 3, 2), Layer(1, 0, 4, 2), Layer(2, 1, 3, 2))
GEOMETRY = Geometry("f", "t", True, 1, (Bank(0, (), Q, Q, Q, (0, 1)), Bank(1, (), Q, Q, Q, (2,))), LAYERS)
SLOTS = (5, 3)
LAYOUT = PoolLayout(1, 0, tuple(BankLayout(i, n, ()) for i, n in enumerate(SLOTS)))
KEYS = [(y.layer, e) for y in LAYERS for e in range(y.experts)]
BANK = {y.layer: y.bank for y in LAYERS}

pick = st.integers(0, 1 << 16)


class ResidencyMachine(RuleBasedStateMachine):
    """`told` is the truth: (bank, slot) to expert; `recalled` the open recalls; `graphs` what unfinished ones read."""

    of: type[Residency] = Residency

    def __init__(self) -> None:
        super().__init__()
        self.residency = self.of(GEOMETRY, LAYOUT)
        assert not self.residency.all_whole
        self.residency.in_use |= {y.layer for y in LAYERS}
        self.told: dict[tuple[int, int], tuple[int, int]] = {}
        self.recalled: set[tuple[int, int]] = set()
        self.graphs: list[tuple[int, set[tuple[int, int]]]] = []
        self.where: dict[tuple[int, int], int] = {}
        self.seen: dict[tuple[int, int], bytes] = {}

    def read_now(self) -> set[tuple[int, int]]:
        return set().union(*(slots for _, slots in self.graphs))

    @rule(a=pick, count=st.integers(1, 8))
    def fill(self, a: int, count: int) -> None:
        """The loader fills only slots that are free on its side: neither told nor awaiting release."""
        for layer, expert in [*KEYS[a % len(KEYS) :], *KEYS[: a % len(KEYS)]][:count]:
            free = [s for s in range(SLOTS[BANK[layer]]) if (BANK[layer], s) not in self.told]
            if (layer, expert) in self.told.values() or not free:
                continue
            slot = free[a % len(free)]
            assert (BANK[layer], slot) not in self.read_now(), "a slot is written while a graph reads it"
            self.residency.fill([Resident(layer, expert, slot)])
            self.told[BANK[layer], slot] = (layer, expert)
            self.where[layer, expert] = slot

    @precondition(lambda self: self.recalled)
    @rule(a=pick, b=pick)
    def fill_a_recalled_expert_elsewhere(self, a: int, b: int) -> None:
        """A Need and a Recall cross: the expert gets another slot before its old one is released."""
        bank, old = sorted(self.recalled)[a % len(self.recalled)]
        key = self.told[bank, old]
        free = [s for s in range(SLOTS[bank]) if (bank, s) not in self.told]
        if free and self.current(key) == old:
            slot = free[b % len(free)]
            self.residency.fill([Resident(*key, slot)])
            self.told[bank, slot] = key
            self.where[key] = slot

    @precondition(lambda self: self.told)
    @rule(a=pick)
    def tell_again(self, a: int) -> None:
        (_, slot), key = sorted(self.told.items())[a % len(self.told)]
        if self.current(key) == slot:
            self.residency.fill([Resident(*key, slot)])

    def current(self, key: tuple[int, int]) -> int:
        """Where an expert is read: in the slot that it was told in last."""
        return self.where.get(key, ABSENT)

    @precondition(lambda self: self.told)
    @rule(a=pick, b=pick)
    def fill_an_occupied_slot(self, a: int, b: int) -> None:
        """The loader breaking rule 2, or telling an expert twice, is noticed and changes nothing."""
        (bank, slot), key = sorted(self.told.items())[a % len(self.told)]
        others = [k for k in KEYS if BANK[k[0]] == bank and k not in self.told.values()]
        if others:
            with pytest.raises(EngineBug):
                self.residency.fill([Resident(*others[b % len(others)], slot)])
        free = [s for s in range(SLOTS[bank]) if (bank, s) not in self.told]
        if free and (bank, self.current(key)) not in self.recalled:
            with pytest.raises(EngineBug):
                self.residency.fill([Resident(*key, free[b % len(free)])])

    @precondition(lambda self: self.told)
    @rule(a=pick, unknown=st.booleans())
    def recall(self, a: int, unknown: bool) -> None:
        (bank, slot), _ = sorted(self.told.items())[a % len(self.told)]
        others = [s for s in range(SLOTS[bank]) if (bank, s) not in self.told][: int(unknown)]
        assert self.residency.recall(bank, [slot, *others]) == others
        self.recalled.add((bank, slot))

    @precondition(lambda self: self.told)
    @rule(a=pick, b=pick)
    def read(self, a: int, b: int) -> None:
        """A graph over some resident experts of a layer, recalled ones too: they are there until they are released."""
        layer = sorted(self.told.items())[a % len(self.told)][1][0]
        here = sorted(k for k in self.where if k[0] == layer)
        chosen = [k for i, k in enumerate(here) if b >> i & 1] or here
        if not chosen:
            return
        table = self.residency.table(layer)
        slots = table[np.array([e for _, e in chosen])]
        self.residency.read(layer, slots)
        self.graphs.append((self.residency.mark, {(BANK[layer], int(s)) for s in slots}))

    @precondition(lambda self: self.graphs)
    @rule()
    def mark(self) -> None:
        self.residency.next_mark()

    @precondition(lambda self: self.graphs)
    @rule()
    def finish_all(self) -> None:
        self.residency.finished()
        self.graphs.clear()

    @precondition(lambda self: self.graphs)
    @rule(a=pick)
    def finish_older(self, a: int) -> None:
        mark = self.graphs[a % len(self.graphs)][0]
        self.residency.finished(before=mark)
        self.graphs = [g for g in self.graphs if g[0] >= mark]

    @precondition(lambda self: self.recalled)
    @rule()
    def release(self) -> None:
        """What is given up is what was asked for and is not read: all of it, and nothing else."""
        given = {(bank, s) for bank, slots in self.residency.release() for s in slots}
        assert given == self.recalled - self.read_now()
        self.recalled -= given
        for place in given:
            key = self.told.pop(place)
            if self.where.get(key) == place[1]:
                del self.where[key]

    @precondition(lambda self: self.told)
    @rule()
    def drop(self) -> None:
        if self.read_now():
            with pytest.raises(EngineBug):
                self.residency.drop()
            return
        self.residency.drop()
        self.told.clear()
        self.where.clear()
        self.recalled.clear()

    @invariant()
    def the_map_is_the_truth(self) -> None:
        for layer in LAYERS:
            want = np.array([self.current((layer.layer, e)) for e in range(layer.experts)])
            np.testing.assert_array_equal(self.residency.table(layer.layer), want)
            usable = [(layer.bank, int(s)) not in self.recalled for s in want if s != ABSENT]
            assert self.residency.whole(layer.layer) == (len(usable) == layer.experts and all(usable))
            version = (layer.layer, self.residency.versions[layer.layer])
            snapshot = self.residency.table(layer.layer).tobytes()
            assert self.seen.setdefault(version, snapshot) == snapshot, "the map changed and its version did not"
        assert self.residency.all_whole == all(self.residency.whole(y.layer) for y in LAYERS)
        assert self.residency.resident == len(self.told)
        assert self.residency.recalls_pending == len(self.recalled)

    @invariant()
    def held_slots_are_those_that_graphs_read(self) -> None:
        for layer in LAYERS:
            assert set(self.residency.held(layer.layer)) == {s for b, s in self.read_now() if b == layer.bank}


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class GivesUpWhatIsRead(Residency):
    def release(self) -> list[tuple[int, tuple[int, ...]]]:
        reading, self._reading = self._reading, [np.zeros_like(r) for r in self._reading]
        given = super().release()
        self._reading = reading
        return given


class KeepsWhatItGaveUp(Residency):
    def release(self) -> list[tuple[int, tuple[int, ...]]]:
        tables = {k: t.copy() for k, t in self._tables.items()}
        given = super().release()
        for layer, table in tables.items():
            self._tables[layer][:] = table
        return given


class GivesUpNothingTwice(Residency):
    def release(self) -> list[tuple[int, tuple[int, ...]]]:
        return super().release()[:1]


class EndsNewerGraphsToo(Residency):
    def finished(self, before: int | None = None) -> None:
        super().finished()


class TakesRecalledForUsable(Residency):
    def whole(self, layer: int) -> bool:
        return bool((self._tables[layer] != ABSENT).all())


class OverwritesSlots(Residency):
    def fill(self, experts: Iterable[Resident]) -> None:
        for told in experts:
            self._owner[self.bank_of[told.layer]].pop(told.slot, None)
            super().fill([told])


class TakesAnExpertTwice(Residency):
    def fill(self, experts: Iterable[Resident]) -> None:
        for told in experts:
            self._tables[told.layer][told.expert] = ABSENT
            super().fill([told])


class KeepsTheOldSlot(Residency):
    def fill(self, experts: Iterable[Resident]) -> None:
        for told in experts:
            before = self._tables[told.layer][told.expert]
            super().fill([told])
            if before != ABSENT:
                self._tables[told.layer][told.expert] = before


class DropsUnderAGraph(Residency):
    def drop(self) -> None:
        self.finished()
        super().drop()


class ForgetsVersions(Residency):
    def release(self) -> list[tuple[int, tuple[int, ...]]]:
        versions = dict(self.versions)
        given = super().release()
        self.versions = versions
        return given


@pytest.mark.parametrize("mutant", [m for m in Residency.__subclasses__() if m.__module__ == __name__])
def test_every_guard_taken_out_is_caught(mutant: type[Residency]) -> None:
    """The machine is no judge unless it sees each of these faults."""
    machine = type("Mutated", (ResidencyMachine,), {"of": mutant})
    phases = (Phase.generate,)
    with pytest.raises((AssertionError, EngineBug, KeyError, Failed)):
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine, settings=settings(max_examples=400, stateful_step_count=30, deadline=None, phases=phases)
        )


def _fill(residency: Residency, told: Iterable[tuple[int, int, int]]) -> None:
    residency.fill(Resident(*t) for t in told)


@pytest.mark.parametrize("told", [(9, 0, 0), (0, 3, 0), (0, -1, 0), (0, 0, 5), (0, 0, -1), (2, 0, 3)])
def test_a_message_that_names_nothing_of_ours_is_a_bug(told: tuple[int, int, int]) -> None:
    """A wrong layer, expert or slot from the loader must not become an index from the end of an array."""
    with pytest.raises(EngineBug):
        _fill(Residency(GEOMETRY, LAYOUT), [told])
