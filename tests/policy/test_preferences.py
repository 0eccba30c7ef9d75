"""What each policy prefers, on histories short enough to follow by hand."""

from collections.abc import Sequence

import pytest

from mtp_loader.policy.belady import Belady
from mtp_loader.policy.decayed import DecayedFrequency
from mtp_loader.policy.forecast import Forecast
from mtp_loader.policy.interface import Event, ForwardClock, Policy, expert_of, key_of, layer_of
from mtp_loader.policy.layer_lfu import LayerLfu
from mtp_loader.policy.lfru import Lfru
from mtp_loader.policy.lru import Lru
from mtp_loader.policy.s3fifo import S3Fifo


def play(policy: Policy, visits: Sequence[tuple[int, ...]], layer: int = 0) -> None:
    for experts in visits:
        policy.record(Event(layer, tuple(key_of(layer, e) for e in experts)))
        for e in experts:
            policy.insert(key_of(layer, e))


def test_keys_go_there_and_back() -> None:
    assert (layer_of(key_of(61, 511)), expert_of(key_of(61, 511))) == (61, 511)


def test_the_clock_counts_forwards_by_layers_that_do_not_rise() -> None:
    clock = ForwardClock()
    assert [clock.tick(layer) for layer in (0, 1, 5, 0, 5, 5)] == [True, False, False, True, False, True]
    assert clock.forwards == 3


def test_lru_gives_up_the_oldest() -> None:
    policy = Lru()
    play(policy, [(1,), (2,), (3,), (1,)])
    assert policy.victims(2, ()) == [2, 3]


def test_decayed_frequency_outweighs_one_use_by_many_until_they_are_old() -> None:
    """Half-life 2: four uses long ago are worth less than one now, four uses just now more."""
    policy = DecayedFrequency(2.0)
    play(policy, [(1,)] * 4 + [(2,)])
    assert policy.victims(1, ()) == [2]
    play(policy, [(3,)] * 8 + [(2,)])
    assert policy.victims(1, ()) == [1]


def test_lfru_divides_uses_by_age() -> None:
    """1: three uses, age 3 → 3/4; 2: two uses, age 0 → 2; 3: one use, age 1 → 1/2."""
    policy = Lfru()
    play(policy, [(1,), (1,), (1,), (2,), (3,), (2,)])
    assert policy.victims(3, ()) == [3, 1, 2]


def test_lfru_ranks_cross_as_time_passes() -> None:
    """Static ranks would keep the once-popular one for ever."""
    policy = Lfru()
    play(policy, [(1,)] * 6 + [(2,)])
    assert policy.victims(1, ()) == [2]
    for _ in range(40):
        play(policy, [(9,)], layer=1)
        policy.record(Event(0, (key_of(0, 2),)))
    assert policy.victims(1, (key_of(1, 9),)) == [1]


def test_layer_lfu_takes_from_the_layer_that_holds_most() -> None:
    policy = LayerLfu()
    play(policy, [(1, 2, 3), (1, 2)], layer=0)
    play(policy, [(7,)], layer=1)
    assert policy.victims(1, ()) == [key_of(0, 3)]


def test_s3_fifo_keeps_what_was_used_again_and_remembers_who_left() -> None:
    """One-time visitors leave first; one that returns after it left goes to the main queue and outlives newcomers."""
    policy = S3Fifo()
    play(policy, [(1,), (2,), (3,), (1,), (1,), (1,)])
    assert policy.victims(1, ()) == [2]
    policy.remove(2)
    play(policy, [(2,), (4,), (5,)])
    assert 2 not in policy.victims(3, ())


def test_s3_fifo_moves_what_it_steps_over() -> None:
    """1 was used in the small queue, so the eviction of 2 moves it to the main one, its uses spent; 2, that comes back
    later, stands behind it. Left where it was, 1 would be stepped over at every later miss.
    """
    policy = S3Fifo()
    play(policy, [(1,), (2,), (3,), (1,), (1,), (1,)])
    policy.remove(2)
    play(policy, [(2,)])
    assert policy.victims(9, ()) == [3, 1, 2]


def test_belady_gives_up_what_is_needed_last() -> None:
    future = [Event(0, (key_of(0, e),)) for e in (1, 2, 3, 1, 2)]
    policy = Belady(future)
    for event in future[:3]:
        policy.record(event)
        policy.insert(event.keys[0])
    assert policy.victims(3, ()) == [3, 2, 1]


@pytest.mark.parametrize("hot", [3, 11])
def test_forecast_learns_who_follows_whom(hot: int) -> None:
    """Visits alternate: after `hot` comes 1, after 2 comes `hot`. Having just seen 2, `hot` is worth more than 1,
    though 1 was used later: only the likeness to earlier visits can know that.
    """
    policy = Forecast()
    play(policy, [(hot,), (1,), (2,)] * 20)
    assert policy.victims(3, ())[-1] == hot


def test_forecast_remembers_what_led_to_a_visit() -> None:
    """9 is followed by 2 after a 1 and by 4 after a 3: the last visit alone cannot tell them apart."""
    for ending, expected in (((1, 9), 2), ((3, 9), 4)):
        policy = Forecast()
        play(policy, [(1,), (9,), (2,), (7,), (8,), (3,), (9,), (4,), (5,), (6,)] * 12)
        play(policy, [(ending[0],), (ending[1],)])
        ranked = [expert_of(key) for key in policy.victims(10, ())]
        other = 6 - expected
        assert ranked.index(expected) > ranked.index(other), (ending, ranked)


def test_a_primed_forecast_begins_with_what_an_earlier_run_learned() -> None:
    """Warm start: without it the first victims are blind, and what was loaded as likely goes as soon as anything."""
    policy = Forecast()
    for layer in range(2):
        policy.prime(layer, [0.9, 0.0, 0.5, 0.2])
        for e in range(4):
            policy.insert(key_of(layer, e))
    assert policy.victims(2, ()) == [key_of(0, 1), key_of(1, 1)]
    policy.record(Event(0, (key_of(0, 0),)))
    policy.record(Event(1, (key_of(1, 0),)))
    assert [expert_of(k) for k in policy.victims(4, ())] == [1, 1, 3, 3]


def test_forecast_gives_up_the_layer_that_comes_round_last() -> None:
    """Equal chances in every layer: the layer just asked is needed latest."""
    policy = Forecast()
    for _ in range(20):
        for layer in range(4):
            play(policy, [(1, 2)], layer)
    play(policy, [(1, 2)], 0)
    play(policy, [(1, 2)], 1)
    assert [layer_of(key) for key in policy.victims(8, ())] == [1, 1, 0, 0, 3, 3, 2, 2]


@pytest.mark.parametrize("steepest", [-10.0, 10.0])
def test_forecast_outlives_text_that_repeats_for_long(steepest: float) -> None:
    """Such text drives its weights to their bounds, and there the chances' sum once was infinite: the loader died."""
    policy = Forecast()
    keys = [key_of(0, expert) for expert in range(6)]
    for key in keys:
        policy.insert(key)
    for step in range(12):
        policy._weights[:] = steepest
        policy.record(Event(0, (keys[step % 2], keys[2])))
    assert sorted(policy.victims(6, ())) == keys
