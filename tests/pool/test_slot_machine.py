"""The four slot rules under random interleavings."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support.slot_machine import WALKS, SlotMachine, walk


def test_slot_rules_hold_under_random_interleavings() -> None:
    """No slot changes under the engine, no two writers, books add up, every wave that fits ends."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        SlotMachine,
        settings=settings(max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=checks),
    )


def test_slot_rules_hold_on_every_walk() -> None:
    """The same rules without hypothesis: more interleavings in less time, the very walks that the mutations fail on."""
    for seed in range(WALKS):
        walk(seed)
