"""Each guard of the slot table is taken out in turn, and the state machine must notice it."""

from collections.abc import Callable
from typing import Any

import pytest

from mtp_loader.errors import LoaderBug
from mtp_loader.pool.bank import BankSlots
from mtp_loader.pool.demand import Ticket
from mtp_loader.pool.effects import PromoteFill
from mtp_loader.pool.fills import BankFills
from mtp_loader.pool.slots import SlotTable
from mtp_loader.pool.states import SlotStates, State
from support.slot_machine import WALKS, walk

Patch = Callable[[pytest.MonkeyPatch], None]


def held_slots_are_victims(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "_may_recall", lambda self, slot: self.slots.state[slot] == State.RESIDENT)


def slots_being_filled_are_victims(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "_may_recall", lambda self, slot: slot not in self.holds)


def a_recall_of_a_held_slot_is_supply(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "_supply", lambda self: len(self.slots.free) + len(self.slots.recalled))


def the_reserve_is_kept_from_demands(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "_may_take", lambda self: len(self.slots.free) > self.reserve)


def no_reserve_is_kept(m: pytest.MonkeyPatch) -> None:
    true_reserve = BankSlots.reserve.fget
    original = BankSlots._recall_victims

    def recall(self: BankSlots) -> None:
        m.setattr(BankSlots, "reserve", 0)
        original(self)
        m.setattr(BankSlots, "reserve", property(true_reserve))

    m.setattr(BankSlots, "_recall_victims", recall)


def a_told_slot_is_freed_without_asking(m: pytest.MonkeyPatch) -> None:
    original = SlotStates.recall

    def recall(self: SlotStates, slot: int) -> bool:
        self.told[slot] = 0
        return original(self, slot)

    m.setattr(SlotStates, "recall", recall)


def anything_may_be_released(m: pytest.MonkeyPatch) -> None:
    original = SlotStates.release

    def release(self: SlotStates, slot: int) -> bool:
        if 0 <= slot < len(self.state) and self.state[slot] == State.RESIDENT:
            self.recall(slot)
        return original(self, slot)

    m.setattr(SlotStates, "release", release)


def any_death_counts(m: pytest.MonkeyPatch) -> None:
    m.setattr(SlotTable, "engine_dead", lambda self, epoch: self._forget_engine())


def death_frees_nothing(m: pytest.MonkeyPatch) -> None:
    m.setattr(SlotStates, "engine_gone", lambda self: None)


def a_new_loader_writes_at_once(m: pytest.MonkeyPatch) -> None:
    original = BankSlots.__init__

    def init(self: BankSlots, *args: Any) -> None:
        original(self, *args)
        self.writable = True

    m.setattr(BankSlots, "__init__", init)


def a_read_under_way_is_not_shared(m: pytest.MonkeyPatch) -> None:
    original = BankSlots._attach

    def attach(self: BankSlots, ticket: Ticket, key: int) -> bool:
        slot = self.slots.slot_of.get(key)
        if slot is not None and slot in self.fills:
            del self.slots.slot_of[key]
        return original(self, ticket, key)

    m.setattr(BankSlots, "_attach", attach)


def what_the_engine_may_still_read_is_read_again(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "_park", lambda self, ticket, key: False)


def what_was_given_up_after_all_is_not_read_again(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "release", lambda self, slot: self.slots.release(slot))


def an_older_need_stays(m: pytest.MonkeyPatch) -> None:
    original = SlotTable.need

    def need(self: SlotTable, need: Any) -> None:
        older, self._tickets = self._tickets, {}
        original(self, need)
        self._tickets = older | self._tickets

    m.setattr(SlotTable, "need", need)


def tickets_hold_on_for_ever(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "let_go", lambda self, slot: None)


def a_ticket_does_not_hold_what_it_was_given(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankFills, "hold", lambda self, ticket, slot: None)
    original = BankFills._abandon

    def abandon(self: BankFills, slot: int) -> Any:
        for ticket in self.fills[slot].waiters:
            ticket.slots.append(slot)
            self.holds[slot] += 1
        return original(self, slot)

    m.setattr(BankFills, "_abandon", abandon)


def a_prefetch_takes_any_slot(m: pytest.MonkeyPatch) -> None:
    def prefetch(self: BankSlots, key: int) -> bool:
        if key in self.slots.slot_of or not self.writable or not self.slots.free:
            return False
        self.start(key, demand=False)
        self.counters.prefetches += 1
        return True

    original = BankSlots._recall_victims

    def recall(self: BankSlots) -> None:
        original(self)
        if self.queue:
            prefetch(self, 2)

    m.setattr(BankSlots, "prefetch", prefetch)
    m.setattr(BankSlots, "_recall_victims", recall)


def a_demanded_prefetch_is_not_promoted(m: pytest.MonkeyPatch) -> None:
    original = SlotTable.drain
    m.setattr(SlotTable, "drain", lambda self: [e for e in original(self) if not isinstance(e, PromoteFill)])


def the_readers_refusal_is_forgotten(m: pytest.MonkeyPatch) -> None:
    def refused(self: BankFills, slot: int) -> None:
        if slot in self.fills:
            self.fills[slot].cancel = "no"

    m.setattr(BankFills, "refused", refused)


def a_cancelled_read_forgets_its_demand(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "requeue", lambda self, slot: self.taken_back(slot))


def a_pin_stands_against_a_demand(m: pytest.MonkeyPatch) -> None:
    m.setattr(BankSlots, "_pinned_victims", lambda self: [])


def pins_are_candidates(m: pytest.MonkeyPatch) -> None:
    original = BankFills.pin

    def pin(self: BankFills, keys: list[int]) -> None:
        original(self, keys)
        for key in keys:
            if key in self.slots.slot_of:
                self.policy.insert(key)

    m.setattr(BankFills, "pin", pin)


def rows_beyond_the_limit_are_used(m: pytest.MonkeyPatch) -> None:
    def to_free(self: SlotStates, slot: int, source: State) -> None:
        self._move(slot, source, State.FREE)
        self.free.append(slot)
        self.leaving.discard(slot)

    m.setattr(SlotStates, "_to_free", to_free)


def rows_beyond_the_limit_are_not_recalled(m: pytest.MonkeyPatch) -> None:
    original = SlotStates.set_limit

    def set_limit(self: SlotStates, limit: int) -> None:
        original(self, limit)
        self.leaving = set()

    m.setattr(SlotStates, "set_limit", set_limit)


def a_ticket_may_come_twice(m: pytest.MonkeyPatch) -> None:
    original = SlotTable.refusal

    def refusal(self: SlotTable, need: Any) -> str | None:
        self._last_ticket = -1
        return original(self, need)

    m.setattr(SlotTable, "refusal", refusal)


def hello_keeps_the_old_tickets(m: pytest.MonkeyPatch) -> None:
    def forget(self: SlotTable) -> None:
        for bank in self.banks:
            bank.slots.engine_gone()
            bank.greeted, bank.writable = False, True
        self._pump()

    m.setattr(SlotTable, "_forget_engine", forget)


def prefetches_are_not_announced(m: pytest.MonkeyPatch) -> None:
    original = BankFills.filled

    def filled(self: BankFills, slot: int) -> list[Ticket]:
        greeted, self.greeted = self.greeted, False
        ended = original(self, slot)
        self.greeted = greeted
        return ended

    m.setattr(BankFills, "filled", filled)


MUTATIONS: list[Patch] = [
    f for n, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == __name__
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda f: f.__name__)
def test_taking_a_guard_out_is_noticed(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's rules in random order, 3000 walks at most; unchanged, they all pass (`test_slot_machine`)."""
    mutation(monkeypatch)
    with pytest.raises((AssertionError, LoaderBug, KeyError, IndexError, ValueError)):
        for seed in range(WALKS):
            walk(seed)
