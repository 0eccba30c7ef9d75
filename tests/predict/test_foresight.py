"""Prediction wired to the slot table: what is read ahead, when, into which slots, and what it is charged with."""

from dataclasses import dataclass

import pytest

from mtp_loader.policy.interface import Event, expert_of, key_of, layer_of
from mtp_loader.policy.registry import make_policy
from mtp_loader.pool.effects import CancelFill, Evicted, StartFill
from mtp_loader.pool.expert_reader import Place
from mtp_loader.pool.layout import make_layout
from mtp_loader.pool.readers import FillResult
from mtp_loader.pool.slots import SlotTable
from mtp_loader.pool.states import State
from mtp_loader.service.foresight import Foresight
from mtp_protocol.expert_messages import Fed, Hint, Need, Recall, Used
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation

LAYERS, EXPERTS, TOP_K = 4, 16, 2
TOKENS = 7  # token ids in use, each with its own routing
READ_S, LAYER_S = 0.001, 0.003


@dataclass
class Loader:
    """Table and foresight on a clock of the test's; reads take `READ_S` each, recalls are answered at once."""

    slots: int

    def __post_init__(self) -> None:
        plane = Plane("gate.weight", "float32", "float32", (4,))
        bank = Bank(0, (plane,), *(Quantisation(),) * 3, tuple(range(LAYERS)))
        geometry = Geometry("f" * 16, "t", True, 1, (bank,), tuple(Layer(y, 0, EXPERTS, TOP_K) for y in range(LAYERS)))
        layout = make_layout(geometry, self.slots * bank.slot_bytes, 1)
        self.table = SlotTable(geometry, layout, [make_policy("lru")], reserve=0)
        self.table.hello()
        self.now = 0.0
        self.foresight = Foresight(geometry, lambda: self.table, 4, lambda: self.now)
        self.foresight.trial.forward = lambda seconds: None  # type: ignore[method-assign]  # nothing computes here
        self.started: list[StartFill] = []
        self.cancelled: list[int] = []
        self.untold: list[Event] = []
        self.ticket = 0

    def carry_out(self) -> None:
        while effects := self.table.drain():
            for effect in effects:
                match effect:
                    case StartFill():
                        self.started.append(effect)
                    case Recall(bank, slots):
                        self.table.released(bank, slots)
                        self.foresight.pump()
                    case CancelFill(bank, slot):
                        self.cancelled.append(slot)
                        key = self.table.banks[bank].slots.key[slot]
                        self.foresight.on_cancelled(layer_of(key), expert_of(key))
                        self.table.fill_cancelled(bank, slot)
                    case Evicted(layer, expert):
                        self.foresight.on_evicted(layer, expert)

    def read_all(self) -> None:
        """Every read under way ends."""
        self.carry_out()
        while self.started:
            fill = self.started.pop(0)
            began, self.now = self.now, self.now + READ_S
            if fill.slot not in self.table.banks[0].fills:
                continue
            place = Place(fill.bank, fill.slot, fill.layer, fill.expert)
            self.foresight.on_read(FillResult(place, fill.demand, None, READ_S, began, 0))
            self.table.fill_done(fill.bank, fill.slot)
            self.foresight.pump()
            self.carry_out()

    def resident(self, key: int) -> bool:
        slots = self.table.banks[0].slots
        return key in slots.slot_of and slots.state[slots.slot_of[key]] == State.RESIDENT

    def absent(self, layer: int, but: int = 0) -> tuple[int, ...]:
        """Two experts that are not in the pool, `but` others passed over."""
        where = self.table.banks[0].slots.slot_of
        return tuple(e for e in range(EXPERTS) if key_of(layer, e) not in where)[but : but + 2]

    def layer(self, layer: int, experts: tuple[int, ...]) -> list[int]:
        """One layer runs; which of its experts were missing."""
        self.now += LAYER_S
        where = self.table.banks[0].slots
        keys = [key_of(layer, e) for e in experts]
        missing = [e for e, key in zip(experts, keys, strict=True) if not self.resident(key)]
        self.untold.append(Event(layer, tuple(sorted(keys))))
        if missing:
            self.ticket += 1
            self.foresight.on_need(self.untold, {key_of(layer, e) for e in missing})
            self.untold = []
            held = tuple(where.slot_of[key] for e, key in zip(experts, keys, strict=True) if e not in missing)
            self.table.need(Need(self.ticket, layer, tuple(missing), held))
            self.carry_out()
            self.foresight.pump()
        return missing

    def hint(self, step: int, layer: int, experts: tuple[int, ...]) -> None:
        self.foresight.on_hint(Hint(step, ((layer, tuple((e, 0.9) for e in experts)),)))
        self.carry_out()

    def forward(self, step: int, rows: list[tuple[int, ...]], hints: list[tuple[int, ...]]) -> int:
        """Layer by layer, each followed by a hint for the next; how many misses."""
        misses = 0
        for y, experts in enumerate(rows):
            misses += len(self.layer(y, experts))
            if y + 1 < LAYERS:
                self.hint(step, y + 1, hints[y + 1])
            self.read_all()
        routing = tuple((y, (row,), ((0.5, 0.5),)) for y, row in enumerate(rows))
        self.foresight.on_used(Used(step, 1, (step % TOKENS,), routing, 0, 0, LAYERS), self.untold)
        self.untold = []
        return misses


def rows_of(step: int) -> list[tuple[int, ...]]:
    """What the token of this step is routed to."""
    token = step % TOKENS
    return [((2 * token + y) % EXPERTS, (2 * token + y + 1) % EXPERTS) for y in range(LAYERS)]


def wrong_of(step: int) -> list[tuple[int, ...]]:
    return [((a + 9) % EXPERTS, (b + 9) % EXPERTS) for a, b in rows_of(step)]


def play(loader: Loader, *, lies: bool = False, fed: bool = False) -> int:
    """Misses of the last 50 of 120 forwards."""
    told = []
    for step in range(1, 121):
        if fed:
            loader.foresight.on_fed(Fed(step, (step % TOKENS,)))
            loader.read_all()
        told.append(loader.forward(step, rows_of(step), wrong_of(step) if lies else rows_of(step)))
    return sum(told[-50:])


def without_reading_ahead() -> int:
    loader = Loader(24)
    loader.foresight.gate.admits = lambda chance, ahead=1: False  # type: ignore[method-assign]
    return play(loader)


def test_true_hints_turn_misses_into_hits() -> None:
    loader = Loader(24)
    assert play(loader) < 0.5 * without_reading_ahead()
    counts = loader.foresight.attributor.counts
    assert counts.hits + counts.misses == 120 * LAYERS * TOP_K


def test_lies_cost_hardly_a_miss() -> None:
    loader = Loader(24)
    assert play(loader, lies=True) <= 1.02 * without_reading_ahead()
    assert loader.foresight.attributor.counts.wasted < 0.05 * 120 * LAYERS * TOP_K


def test_nothing_is_read_ahead_while_a_demand_waits_on_a_disk_of_bandwidth() -> None:
    """Its read would slow the demand's by as much; once the demand is served, it begins at once."""
    loader = Loader(40)
    play(loader)
    first, then = loader.absent(0), loader.absent(1)
    loader.foresight.on_fed(Fed(500, ()))
    loader.layer(0, first)
    loader.hint(500, 1, then)
    assert [f.demand for f in loader.started] == [True, True]
    for _ in range(2):
        fill = loader.started.pop(0)
        loader.table.fill_done(fill.bank, fill.slot)
        loader.foresight.pump()
        loader.carry_out()
    assert {(f.layer, f.expert) for f in loader.started} == {(1, e) for e in then}


def test_side_by_side_where_reads_cost_each_other_nothing() -> None:
    """A disk of latency: waiting for the demand would waste the time in which both could be read."""
    loader = Loader(40)
    play(loader)
    for beside in (0, 1, 2, 3) * 20:
        loader.foresight.contention.add(beside, READ_S)
    loader.layer(0, loader.absent(0))
    loader.hint(121, 1, loader.absent(1))
    assert [f.demand for f in loader.started].count(False) == 2


def test_the_tokens_of_a_forward_bring_its_first_layers_experts() -> None:
    """Before any layer has run, no hint speaks of the first: only what these tokens used last."""
    loader = Loader(24)
    play(loader, fed=True)
    token = next(t for t in range(TOKENS) if not any(loader.resident(key_of(0, e)) for e in rows_of(t)[0]))
    loader.foresight.on_fed(Fed(900, (token,)))
    loader.read_all()
    assert all(loader.resident(key_of(0, e)) for e in rows_of(token)[0])


def test_a_wrong_read_that_has_not_begun_is_taken_back() -> None:
    loader = Loader(40)
    play(loader)
    before = loader.foresight.attributor.counts.prefetched
    wrong, needed = loader.absent(1), loader.absent(1, but=2)
    loader.hint(500, 1, wrong)
    reading = sorted(f.slot for f in loader.started)
    assert len(reading) == 2
    loader.layer(1, needed)
    assert sorted(loader.cancelled) == reading
    assert loader.foresight.attributor.counts.prefetched == before


def test_what_a_hint_names_is_not_given_up_for_something_else() -> None:
    """Resident, unused for long, and needed in the next layer: the policy alone would choose it now."""
    loader = Loader(24)
    play(loader)
    bank = loader.table.banks[0]
    oldest = next(key for key in bank.policy.victims(24, ()) if layer_of(key) > 0)
    loader.foresight.on_fed(Fed(500, ()))
    loader.hint(500, layer_of(oldest), (expert_of(oldest),))
    before = layer_of(oldest) - 1
    loader.layer(before, loader.absent(before) + loader.absent(before, but=2) + loader.absent(before, but=4))
    assert oldest in bank.slots.slot_of


@pytest.mark.parametrize("slots", [LAYERS * EXPERTS, LAYERS * EXPERTS - 1])
def test_a_pool_with_room_for_everything_is_filled_without_statistics(slots: int) -> None:
    """Otherwise a layer whose last expert nobody asks for is never whole, and each of its forwards waits for the host.

    One slot less, and there is no reason to read what may not be needed.
    """
    loader = Loader(slots)
    loader.foresight.warm()
    loader.foresight.pump()
    loader.read_all()
    there = sum(loader.resident(key_of(y, e)) for y in range(LAYERS) for e in range(EXPERTS))
    assert there == (slots if slots == LAYERS * EXPERTS else 0)
    assert loader.foresight.warm_fill.share == 1.0


@pytest.mark.parametrize("reading_ahead", [True, False])
def test_where_nothing_is_read_ahead_learning_waits_for_the_end_of_the_forward(
    reading_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a Need and its reads it would delay what the engine waits for, to no purpose."""
    loader = Loader(12)
    loader.foresight.trial.on = reading_ahead
    learned: list[Event] = []
    monkeypatch.setattr(loader.foresight.predictor, "on_event", learned.append)
    loader.layer(0, (0, 1))
    loader.read_all()
    assert bool(learned) == reading_ahead
    routing = tuple((layer, ((0, 1),), ((0.5, 0.5),)) for layer in range(LAYERS))
    loader.foresight.on_used(Used(0, 1, (1,), routing, 0, 2), ())
    assert [event.layer for event in learned] == [0]
