"""Prefetching turns itself down when it loses and comes back when it pays; the books of what it did."""

import pytest

from mtp_loader.predict.attribution import Attributor
from mtp_loader.predict.pace import Pace
from mtp_loader.predict.profit import ProfitGate


def live(gate: ProfitGate, forwards: int, chance: float, precision: float, gain_s: float) -> int:
    """Ten predictions a forward, right as often as `precision`; each one read brings `gain_s`. Returns reads."""
    reads = 0
    for _ in range(forwards):
        for i in range(10):
            read = gate.admits(chance)
            reads += read
            gate.judge(chance, right=i < precision * 10)
            if read:
                gate.was_read(right=i < precision * 10)
                (gate.saved if gain_s > 0 else gate.harmed)(abs(gain_s))
        gate.forward_done()
    return reads


def test_a_predictor_that_is_always_wrong_is_hardly_ever_read() -> None:
    """It claims certainty; the gate learns what that is worth before it lets much through."""
    assert live(ProfitGate(), 500, 1.0, 0.0, -0.001) <= 10


def test_a_good_predictor_is_let_through_even_where_it_claims_little() -> None:
    assert live(ProfitGate(), 100, 0.2, 0.9, 0.001) > 900


def test_what_a_claim_is_worth_is_learned_while_nothing_is_read() -> None:
    """A source that was wrong and gets better must come back without having to be read first."""
    gate = ProfitGate()
    live(gate, 50, 0.8, 0.0, -0.001)
    assert not gate.admits(0.8)
    live(gate, 60, 0.8, 1.0, 0.001)
    assert gate.admits(0.8)


def test_losing_pauses_and_pauses_grow() -> None:
    """Right predictions that cost more than they save (a disk with no time to spare) are stopped too."""
    gate = ProfitGate()
    first = live(gate, 100, 0.8, 1.0, -0.001)
    second = live(gate, 400, 0.8, 1.0, -0.001)
    assert gate.pauses >= 3
    assert second / 400 < first / 100 / 2


def test_a_probe_rearms_it_when_it_pays_again() -> None:
    gate = ProfitGate()
    live(gate, 60, 0.8, 1.0, -0.001)
    assert gate.pauses > 0
    assert live(gate, 200, 0.8, 1.0, 0.001) > 1000
    assert gate.active


def test_waste_raises_the_precision_asked_for() -> None:
    gate = ProfitGate()
    before = gate.precision_asked
    live(gate, 5, 0.8, 1.0, 0.001)
    assert gate.precision_asked < before
    for _ in range(20):
        gate.was_read(right=False)
    gate.forward_done()
    assert gate.precision_asked > before - 0.02


def test_the_three_kinds_of_misses() -> None:
    """Never predicted, predicted but late, predicted, loaded and evicted again: by hand (hits + misses == requests)."""
    a = Attributor()
    a.request(1, resident=False)
    a.predicted(2)
    a.request(2, resident=False)
    a.prefetched(3)
    a.evicted(3)
    a.request(3, resident=False)
    a.prefetched(4)
    assert a.request(4, resident=True) == "covered"
    assert a.request(4, resident=True) == "as without"
    c = a.counts
    assert (c.never_predicted, c.late, c.evicted_again, c.hits, c.misses) == (1, 1, 1, 2, 3)
    assert (c.prefetched, c.useful, c.wasted) == (2, 1, 1)
    assert c.coverage == pytest.approx(1 / 4)
    assert c.waste == 1.0


def test_a_prediction_counts_for_its_own_forward_only() -> None:
    a = Attributor()
    a.predicted(2)
    a.forward()
    a.request(2, resident=False)
    assert a.counts.never_predicted == 1


def test_what_a_prefetch_displaced_is_charged_to_it() -> None:
    """One prefetch owes one victim: only that one's next miss is its fault."""
    a = Attributor()
    a.prefetched(9)
    a.evicted(1)
    a.evicted(2)
    assert a.request(1, resident=False) == "displaced"
    assert a.request(2, resident=False) == "as without"
    assert a.request(1, resident=False) == "as without"


def test_who_left_for_a_prefetch_that_was_right_would_have_left_anyway() -> None:
    """The demand would have taken a slot as well: charging the victim to the prefetch would pause what pays."""
    a = Attributor()
    a.prefetched(9)
    a.evicted(1)
    assert a.request(9, resident=True) == "covered"
    assert a.request(1, resident=False) == "as without"


def test_a_claim_two_layers_ahead_is_judged_apart() -> None:
    """Stated earlier it is right less often; in one bucket with the later ones it would ride on their record."""
    gate = ProfitGate()
    for _ in range(50):
        gate.judge(0.8, 1, right=True)
        gate.judge(0.8, 2, right=False)
    assert gate.admits(0.8, 1) and not gate.admits(0.8, 2)


def test_a_cancelled_prefetch_never_was() -> None:
    a = Attributor()
    a.prefetched(9)
    a.cancelled(9)
    a.evicted(1)
    assert a.counts.prefetched == 0
    assert a.request(1, resident=False) == "as without"


def test_as_many_prefetches_as_there_is_time_for() -> None:
    """Four readers, layers of 1 ms: reads of 2 ms allow 4 in two layers' time, of 0.1 s one, of nothing known one."""
    for read_s, depth in ((0.002, 4), (0.1, 1), (1e-5, 16)):
        pace = Pace(4, range(4))
        assert pace.depth == 1
        for i in range(200):
            pace.reached(i % 4, i * 0.001)
            pace.read(read_s, demand=True)
        assert pace.depth == depth


def test_prefetch_times_do_not_count_once_demands_are_known() -> None:
    """A prefetch waits behind demands on purpose: its time says nothing about the disk."""
    pace = Pace(4, range(4))
    pace.read(0.001, demand=True)
    pace.read(9.0, demand=False)
    assert pace.read_s == pytest.approx(0.001)
