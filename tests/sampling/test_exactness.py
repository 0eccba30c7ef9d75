"""100,000 draws a setting against the exact law, speculation off and on: rejection sampling and seeded noise.

A verify's rows are independent, so one verify of 100,000 one-draft branches is 100,000 draws.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from mtp_daemon.engine.sampling import Chooser
from mtp_daemon.engine.sampling.law import Law
from mtp_daemon.engine.sampling.noise import FreshNoise, gumbel, position_key
from mtp_daemon.engine.sampling.rejection import Trial, try_drafts
from mtp_protocol.sampling import Sampling
from support.exact_law import chi_square_p, exact_law

DRAWS = 100_000
TARGET = [1.2, -0.3, 0.8, 2.0, 0.1, -1.5, 0.9, 0.0]
HEAD = [0.4, 0.9, 1.1, 1.4, -0.8, 0.3, -1.0, 1.0]  # a head that is wrong in its own way
HISTORY = [3, 2, 3, 6, 0, 3]
CHANCE = 1e-4  # a right sampler fails one setting in 10,000 by luck; the noise is fixed, so it does not flicker

SETTINGS = [
    {},
    {"temperature": 0.6},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.15},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.3},
    {"logit_bias": {1: 1.5, 3: -2.0}},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2, "logit_bias": {4: 1.0}},
]


def sampling_of(settings: dict[str, object]) -> Sampling:
    return Sampling(**{"temperature": 1.0, **settings})  # type: ignore[arg-type]


def law_of(logits: Sequence[float], sampling: Sampling) -> mx.array:
    law = Law(sampling)
    return law.log_probabilities(law.adjusted(mx.array([logits]), [HISTORY]))[0]


def counted(tokens: mx.array) -> np.ndarray:
    return np.bincount(np.array(tokens), minlength=len(TARGET))


def drafted(law: mx.array, seed: int, count: int) -> mx.array:
    """`count` distinct drafts a row, as `Chooser.propose` draws them: tokens [DRAWS, count]."""
    weights = law + FreshNoise(seed).gumbel(DRAWS, law.shape[-1])
    return mx.argsort(-weights, axis=-1)[:, :count].astype(mx.int32)


def rejection_draws(sampling: Sampling, trials: list[Trial], seed: int = 5) -> mx.array:
    law = mx.broadcast_to(law_of(TARGET, sampling), (DRAWS, len(TARGET)))
    return try_drafts(law, trials, FreshNoise(seed))[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
def test_unseeded_draws_follow_the_targets_law(settings: dict[str, object], drafts: int) -> None:
    """Rejection sampling with the residual, over 0..3 drafts of one parent, drawn without replacement."""
    sampling = sampling_of(settings)
    head = law_of(HEAD, sampling)
    tokens = drafted(head, 11, max(1, drafts))
    every = mx.broadcast_to(head, (DRAWS, len(HEAD)))
    trials = [Trial(tokens[:, turn], every, mx.ones((DRAWS,), dtype=mx.bool_)) for turn in range(drafts)]
    p = chi_square_p(counted(rejection_draws(sampling, trials)), exact_law(TARGET, HISTORY, sampling))
    assert p > CHANCE


def test_a_draft_that_its_law_cannot_draw_is_passed_over() -> None:
    """rescue, tree: with top_k 3 a fifth candidate is no draw of the head's, though the target may well draw it."""
    sampling = sampling_of({"top_k": 3})
    head = law_of(HEAD, sampling)
    tokens = drafted(head, 19, 5)
    every = mx.broadcast_to(head, (DRAWS, len(HEAD)))
    trials = [Trial(tokens[:, turn], every, mx.ones((DRAWS,), dtype=mx.bool_)) for turn in range(5)]
    assert chi_square_p(counted(rejection_draws(sampling, trials)), exact_law(TARGET, HISTORY, sampling)) > CHANCE


def test_unseeded_draws_with_drafts_chosen_without_chance() -> None:
    """A scripted drafter, or the head's best two tokens: all of the draft's law lies on one token."""
    sampling = sampling_of({})
    certain = [mx.broadcast_to(mx.log(mx.array(np.eye(1, 8, t, dtype=np.float32))), (DRAWS, 8)) for t in (3, 1)]
    trials = [
        Trial(mx.full((DRAWS,), token, dtype=mx.int32), law, mx.ones((DRAWS,), dtype=mx.bool_))
        for token, law in zip((3, 1), certain, strict=True)
    ]
    assert chi_square_p(counted(rejection_draws(sampling, trials)), exact_law(TARGET, HISTORY, sampling)) > CHANCE


def test_a_draft_is_accepted_as_often_as_the_laws_overlap() -> None:
    """The share of right drafts is sum(min(p, q)): less would waste drafts, more would not be exact."""
    sampling = sampling_of({})
    head = law_of(HEAD, sampling)
    law = mx.broadcast_to(law_of(TARGET, sampling), (DRAWS, len(TARGET)))
    trial = Trial(drafted(head, 13, 1)[:, 0], mx.broadcast_to(head, law.shape), mx.ones((DRAWS,), dtype=mx.bool_))
    _, accepted = try_drafts(law, [trial], FreshNoise(2))
    overlap = np.minimum(exact_law(TARGET, HISTORY, sampling), exact_law(HEAD, HISTORY, sampling)).sum()
    assert abs(float((accepted >= 0).astype(mx.float32).mean()) - overlap) < 0.006


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_seeded_draws_follow_the_targets_law(settings: dict[str, object], over: str) -> None:
    """Gumbel-max: independent over seeds at one position, and over positions with one seed."""
    sampling = sampling_of(settings)
    keys = [position_key(i, 17) if over == "seeds" else position_key(17, i) for i in range(DRAWS)]
    law = Law(sampling)
    weights = law.log_weights(law.adjusted(mx.array([TARGET]), [HISTORY]))
    tokens = mx.argmax(weights + gumbel(keys, len(TARGET)), axis=-1)
    assert chi_square_p(counted(tokens), exact_law(TARGET, HISTORY, sampling)) > CHANCE


def test_seeded_neighbours_are_independent() -> None:
    """Noise that repeated from one position to the next would leave each position's law right and the text wrong."""
    sampling = sampling_of({})
    keys = [position_key(23, i) for i in range(DRAWS)]
    law = Law(sampling)
    weights = law.log_weights(law.adjusted(mx.array([TARGET]), [HISTORY]))
    tokens = np.array(mx.argmax(weights + gumbel(keys, len(TARGET)), axis=-1))
    exact = exact_law(TARGET, HISTORY, sampling)
    pairs = np.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64)
    assert chi_square_p(pairs, np.outer(exact, exact).ravel()) > CHANCE


@pytest.mark.parametrize("settings", SETTINGS[:1] + SETTINGS[-1:], ids=str)
def test_a_run_of_two_follows_the_targets_joint_law(settings: dict[str, object]) -> None:
    """100,000 answers of two tokens at depth 1: a bonus token after a right draft, another round after a wrong one."""
    sampling = sampling_of(settings)
    size = len(TARGET)
    after = [np.roll(TARGET, token + 1) * 0.8 for token in range(size)]  # the target's logits after each token
    seconds = mx.stack([law_after(after[token], token, sampling) for token in range(size)])
    head = mx.broadcast_to(law_of(HEAD, sampling), (DRAWS, size))
    drafts = drafted(head[0], 17, 1)[:, 0]
    trial = Trial(drafts, head, mx.ones((DRAWS,), dtype=mx.bool_))
    noise = FreshNoise(3)
    first, accepted = try_drafts(mx.broadcast_to(law_of(TARGET, sampling), (DRAWS, size)), [trial], noise)
    bonus, _ = try_drafts(seconds[drafts], [], noise)
    another, _ = try_drafts(seconds[first], [], noise)
    second = mx.where(accepted >= 0, bonus, another)
    exact = exact_law(TARGET, HISTORY, sampling)[:, None] * np.stack(
        [exact_law(after[token].tolist(), [*HISTORY, token], sampling) for token in range(size)]
    )
    pairs = np.bincount(np.array(first * size + second), minlength=size * size)
    assert chi_square_p(pairs, exact.ravel()) > CHANCE


def law_after(logits: np.ndarray, token: int, sampling: Sampling) -> mx.array:
    law = Law(sampling)
    return law.log_probabilities(law.adjusted(mx.array(logits[None]), [[*HISTORY, token]]))[0]


def test_unseeded_plain_decoding_through_the_chooser() -> None:
    """The whole path of one request at depth 0, 1,000 tokens of it: fresh noise is fresh each round."""
    sampling = sampling_of({})
    chooser = Chooser(sampling, fresh_seed=9)
    logits = mx.array([TARGET])
    counts = np.zeros(8, dtype=np.int64)
    for _ in range(1000):
        counts[chooser.judge(logits, HISTORY).ids[0]] += 1
    assert chi_square_p(counts, exact_law(TARGET, HISTORY, sampling)) > CHANCE
