"""When demands waited, and how much reads slow each other."""

import random

import pytest

from mtp_loader.policy.interface import Event, key_of
from mtp_loader.predict.waits import Contention, Waits
from mtp_loader.service.guesses import of_running_forward


def test_time_in_which_a_demand_waited_is_told_from_time_in_which_none_did() -> None:
    """A read ahead in idle time is free; the same read beside a demand may not be."""
    waits = Waits()
    for waiting, now in ((True, 1.0), (True, 1.5), (False, 2.0), (False, 2.5), (True, 4.0)):
        waits.note(waiting, now)
    assert waits.within(0.0, 0.9) == 0.0
    assert waits.within(1.5, 3.0) == pytest.approx(0.5)
    assert waits.within(0.0, 5.0) == pytest.approx(2.0)
    assert waits.within(4.5, 5.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("alone_s", "each_s", "share"), [(0.002, 0.002, 1.0), (0.002, 0.0, 0.0), (0.004, 0.001, 0.25)])
def test_a_disk_of_bandwidth_is_told_from_one_of_latency(alone_s: float, each_s: float, share: float) -> None:
    contention, rng = Contention(), random.Random(1)
    assert contention.share == 1.0
    for _ in range(200):
        beside = rng.randrange(4)
        contention.add(beside, alone_s + each_s * beside + rng.gauss(0.0, 0.0001))
    assert contention.share == pytest.approx(share, abs=0.1)


def test_without_company_nothing_is_known_of_it() -> None:
    """Reads that were always alone say nothing: the careful answer stands."""
    contention = Contention()
    for _ in range(100):
        contention.add(0, 0.001)
    assert contention.share == 1.0


@pytest.mark.parametrize(
    ("layers", "begins"), [((3,), 0), ((0, 1, 2), 0), ((6, 7, 0, 1), 2), ((8, 0), 1), ((5, 6, 7, 0, 1, 2, 0), 6)]
)
def test_layers_of_the_forward_before_are_not_taken_for_this_ones(layers: tuple[int, ...], begins: int) -> None:
    """A Need tells of both: taken together they would end the announced forward before it ran."""
    events = [Event(layer, (key_of(layer, 1),)) for layer in layers]
    assert of_running_forward(events) == begins
