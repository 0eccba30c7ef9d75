"""What a miss costs the slot table does not grow with the pool."""

import sys
from types import FrameType
from typing import Any

import pytest

from mtp_loader.policy.lru import Lru
from mtp_loader.pool.effects import StartFill
from mtp_loader.pool.slots import SlotTable
from mtp_protocol.expert_messages import Need, Recall
from support.slot_model import plain_layout, tiny_geometry


def lines_per_miss(slots: int, misses: int) -> float:
    """Lines of Python run per miss, in a full pool: need, recall, release, fill. Counted, so no clock is asked."""
    experts = 2 * slots
    geometry = tiny_geometry(1, experts, 4)
    table = SlotTable(geometry, plain_layout(geometry, slots), [Lru()], reserve=2)
    table.engine_up(1)
    table.hello()

    def miss(number: int, expert: int) -> None:
        table.need(Need(number, 0, (expert,), ()))
        while effects := table.drain():
            for effect in effects:
                match effect:
                    case StartFill(bank, slot, _, _, _):
                        table.fill_done(bank, slot)
                    case Recall(bank, gone):
                        table.released(bank, gone)

    for n in range(slots):
        miss(n + 1, n)
    count = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        for n in range(misses):
            miss(slots + n + 1, slots + n % slots)
    finally:
        sys.settrace(None)
    table.check_integrity()
    assert table.counters.misses == slots + misses
    return count / misses


@pytest.mark.parametrize("slots", [64, 1024, 8192])
def test_a_miss_costs_the_same_in_a_larger_pool(slots: int) -> None:
    """Pools of 8 to 8192 slots; the work of a miss in the largest is that in the smallest."""
    assert lines_per_miss(slots, 40) <= 1.1 * lines_per_miss(8, 40)
