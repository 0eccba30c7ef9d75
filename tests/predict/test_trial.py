"""Trying both ways: the quicker one is found, kept, and left when it is the quicker one no more."""

import random

from mtp_loader.predict.trial import Trial


def share_on(trial: Trial, with_s: float, without_s: float, forwards: int) -> float:
    rng, on = random.Random(3), 0
    for _ in range(forwards):
        on += trial.on
        trial.forward((with_s if trial.on else without_s) * rng.uniform(0.85, 1.3))
    return on / forwards


def test_what_makes_forwards_slower_is_left_off() -> None:
    """Even where every count of reads says that it pays: 0.82 of the speed was measured so."""
    trial = Trial()
    share_on(trial, 1.2, 1.0, 200)
    assert not trial.on
    assert share_on(trial, 1.2, 1.0, 2000) < 0.06


def test_what_makes_them_quicker_is_kept_on() -> None:
    assert share_on(Trial(), 0.85, 1.0, 2000) > 0.95


def test_what_is_a_little_slower_is_mostly_left_off() -> None:
    assert share_on(Trial(), 1.05, 1.0, 3000) < 0.25


def test_another_text_or_pool_is_noticed() -> None:
    trial = Trial()
    share_on(trial, 1.2, 1.0, 600)
    share_on(trial, 0.8, 1.0, 3000)
    assert trial.on
