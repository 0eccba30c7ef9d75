"""Reads begin before the bookkeeping of their demand; what a policy hears and is asked is the same as without that."""

from collections.abc import Container

from mtp_loader.policy.interface import Event, key_of
from mtp_loader.policy.lru import Lru
from mtp_loader.pool.effects import StartFill
from mtp_loader.pool.slots import SlotTable
from mtp_protocol.expert_messages import Need
from support.slot_model import plain_layout, tiny_geometry

LAYERS, EXPERTS, SLOTS, RESERVE = 1, 16, 8, 2


class Listening(Lru):
    """What the policy is told and asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, object]] = []

    def record(self, event: Event) -> None:
        self.heard.append(("record", event.layer))
        super().record(event)

    def insert(self, key: int) -> None:
        self.heard.append(("insert", key))
        super().insert(key)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        self.heard.append(("victims", n))
        return super().victims(n, protected)


def filled_table(policy: Listening) -> SlotTable:
    """All slots but the reserve hold experts 0, 1, …; an engine has greeted."""
    geometry = tiny_geometry(LAYERS, EXPERTS, 4)
    table = SlotTable(geometry, plain_layout(geometry, SLOTS), [policy], reserve=RESERVE)
    table.engine_up(1)
    table.hello()
    table.need(Need(1, 0, tuple(range(SLOTS - RESERVE)), ()))
    for effect in table.drain():
        if isinstance(effect, StartFill):
            table.fill_done(effect.bank, effect.slot)
    table.drain()
    policy.heard.clear()
    return table


def test_reads_into_free_slots_wait_for_no_policy() -> None:
    """When the policies are told what ran, the FREE slots' reads are ordered, and no victim has been asked for."""
    policy = Listening()
    table = filled_table(policy)
    begun: list[int] = []

    def hear() -> None:
        assert not policy.heard
        begun.extend(e.expert for e in table.drain() if isinstance(e, StartFill))
        policy.record(Event(0, tuple(key_of(0, e) for e in (10, 11, 12))))

    table.need(Need(2, 0, (10, 11, 12), ()), hear)
    assert begun == [10, 11]
    assert policy.heard[:2] == [("record", 0), ("victims", 3)], "one more than is FREE, and the reserve"
    assert [what for what in policy.heard if what[0] == "insert"] == [("insert", key_of(0, e)) for e in (10, 11)]


def test_a_policy_hears_the_same_whether_reads_began_early_or_not() -> None:
    early, late = Listening(), Listening()
    for policy in (early, late):
        table = filled_table(policy)
        if policy is late:
            for bank in table.banks:
                bank.begin = lambda: None  # type: ignore[method-assign]
        table.need(Need(2, 0, (10, 11, 12), ()))
    assert early.heard == late.heard
