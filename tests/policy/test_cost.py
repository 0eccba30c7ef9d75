"""What a miss costs in bookkeeping does not grow with the pool."""

import sys
from types import FrameType
from typing import Any

import pytest

from mtp_loader.policy.registry import CLAIRVOYANT, NAMES
from mtp_loader.replay.run import Residency
from mtp_loader.replay.table import maker
from support.traces import made_up_events

POOLS = (8, 128, 1024, 8192)
LAYERS, EXPERTS = 32, 320
EVENTS = made_up_events(10, LAYERS, EXPERTS, 4, seed=3)


def steps_a_miss(name: str, slots: int) -> float:
    """Lines of Python executed a miss, in a full pool that misses now and then; time would measure other processes.

    Work inside numpy and the C containers is not seen: it is on rows of a layer's experts, or logarithmic.
    """
    bank = Residency(slots, 0, maker(name)(EVENTS))
    every = [(layer << 16) | expert for layer in range(LAYERS) for expert in range(EXPERTS)]
    for key in every[:slots]:
        bank.policy.insert(key)
        bank.resident.add(key)
    for event in EVENTS[: LAYERS * 2]:
        bank.request(event)
    lines = misses = 0

    def count(_frame: FrameType, kind: str, _argument: Any) -> Any:
        nonlocal lines
        lines += kind == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for event in EVENTS[LAYERS * 2 :]:
            misses += len(bank.request(event))
    finally:
        sys.settrace(before)
    return lines / misses if misses else 0.0


@pytest.mark.parametrize("name", [*NAMES, CLAIRVOYANT])
def test_bookkeeping_a_miss_stays_flat(name: str) -> None:
    """A scan over residents makes the largest pool a hundred times as dear as the smallest."""
    steps = {slots: steps_a_miss(name, slots) for slots in POOLS}
    assert all(value > 0 for value in steps.values())
    # A large pool misses seldom, so a miss also carries the events in between: four hits' worth each.
    assert steps[8192] < 6 * steps[128] + 200, steps
