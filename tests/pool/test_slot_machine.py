"""The four slot rules under random interleavings."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support.slot_machine import SlotMachine


def test_slot_rules_hold_under_random_interleavings() -> None:
    """D3, D4: no slot changes under the engine, no two writers, books add up, every wave that fits ends."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        SlotMachine,
        settings=settings(max_examples=250, stateful_step_count=60, deadline=None, suppress_health_check=checks),
    )
