"""The law's order, filters and penalties, against mlx-lm's own processors and against numpy in double precision."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils

from mtp_daemon.engine.sampling.law import PENALTY_WINDOW, Law
from mtp_protocol.sampling import Sampling
from support.exact_law import exact_law

VOCABULARY = 40
RANDOM = np.random.default_rng(3)
LOGITS = RANDOM.normal(0.0, 2.0, (5, VOCABULARY)).astype(np.float32)
HISTORIES = [RANDOM.integers(0, VOCABULARY, n).tolist() for n in (1, 3, 19, 20, 60)]
BIAS = {3: 2.0, 7: -30.0, 39: 0.5}

PENALTIES = [
    Sampling(),
    Sampling(repetition_penalty=1.3),
    Sampling(repetition_penalty=0.8),
    Sampling(presence_penalty=0.7),
    Sampling(frequency_penalty=0.4),
    Sampling(logit_bias=BIAS),
    Sampling(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=-0.4, logit_bias=BIAS),
]
FILTERS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6),
    Sampling(temperature=1.7, top_p=0.7),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=1.3, top_k=1),
    Sampling(temperature=1.0, top_k=VOCABULARY + 9),
    Sampling(temperature=0.8, min_p=0.1),
    Sampling(temperature=0.7, top_p=0.9, top_k=6, min_p=0.05),
    Sampling(temperature=0.7, top_p=1e-6),
    Sampling(temperature=0.9, top_p=0.8, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.2),
]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("sampling", PENALTIES)
def test_penalties_and_bias_are_mlx_lms_over_prompt_and_answer(sampling: Sampling, dtype: mx.Dtype) -> None:
    """To the bit, in the logits' own type; `repetition_penalty` 1.3 is never dropped, and means what it means there."""
    logits = mx.array(LOGITS).astype(dtype)
    ours = Law(sampling).adjusted(logits, HISTORIES)
    processors = sample_utils.make_logits_processors(
        dict(sampling.logit_bias),
        sampling.repetition_penalty,
        PENALTY_WINDOW,
        sampling.presence_penalty,
        PENALTY_WINDOW,
        sampling.frequency_penalty,
        PENALTY_WINDOW,
    )
    for row, history in enumerate(HISTORIES):
        theirs = logits[row : row + 1]
        for processor in processors:
            theirs = processor(mx.array(history), theirs)
        assert ours.dtype == theirs.dtype and mx.array_equal(ours[row], theirs[0]).item()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_a_greedy_choice_is_mlx_lms_where_rounding_makes_ties(dtype: mx.Dtype) -> None:
    """Subtracting the log of the sum rounds; two logits that differed may not any more, and then the first one wins."""
    logits = mx.array(np.random.default_rng(8).normal(0.0, 0.05, (200, 3000)).astype(np.float32)).astype(dtype)
    law = Law(Sampling())
    ours = mx.argmax(law.log_weights(law.adjusted(logits, [[1]] * 200)), axis=-1)
    theirs = [sample_utils.greedy_sampler(row[None] - mx.logsumexp(row[None], keepdims=True)).item() for row in logits]
    assert ours.tolist() == theirs
    assert dtype == mx.float32 or theirs != mx.argmax(logits, axis=-1).tolist(), "no tie among these: shows nothing"


@pytest.mark.parametrize("sampling", FILTERS)
def test_filters_and_temperature_give_the_exact_law(sampling: Sampling) -> None:
    law = Law(sampling)
    ours = np.exp(np.array(law.log_probabilities(law.adjusted(mx.array(LOGITS), HISTORIES))))
    for row, history in enumerate(HISTORIES):
        exact = exact_law(LOGITS[row].tolist(), history, sampling)
        assert np.allclose(ours[row], exact, atol=1e-5)
        assert ((ours[row] > 0) == (exact > 0)).all(), "the same tokens are kept"


@pytest.mark.parametrize(("top_p", "min_p", "top_k"), [(0.8, 0.0, 0), (0.0, 0.1, 0), (0.0, 0.0, 7), (0.9, 0.02, 9)])
def test_the_filters_keep_what_mlx_lms_keep(top_p: float, min_p: float, top_k: int) -> None:
    """The order (top-p, min-p, top-k, then temperature) is mlx-lm's `make_sampler`: same support, same law."""
    log_probabilities = mx.array(LOGITS) - mx.logsumexp(mx.array(LOGITS), axis=-1, keepdims=True)
    theirs = log_probabilities
    if top_p:
        theirs = sample_utils.apply_top_p(theirs, top_p)
    if min_p:
        theirs = sample_utils.apply_min_p(theirs, min_p)
    if top_k:
        theirs = sample_utils.apply_top_k(theirs, top_k)
    ours = Law(Sampling(temperature=1.0, top_p=top_p or 1.0, min_p=min_p, top_k=top_k)).log_weights(mx.array(LOGITS))
    assert ((np.array(ours) > -np.inf) == (np.array(theirs) > -np.inf)).all()


@pytest.mark.parametrize("temperature", [1e-9, 1e-30, 1e-38, 1e-45, 5e-324])
def test_nearly_no_temperature_is_greedy(temperature: float) -> None:
    """Below float32's smallest numbers the law was NaN, and the tokens were noise."""
    law = Law(Sampling(temperature=temperature, logit_bias={3: -1e4}))
    adjusted = law.adjusted(mx.array(LOGITS), HISTORIES)
    ours = np.exp(np.array(law.log_probabilities(adjusted)))
    assert np.array_equal(ours, np.eye(LOGITS.shape[-1])[np.array(adjusted).argmax(-1)])


def test_tied_tokens_are_kept_together() -> None:
    """Which of several equal tokens a partial sort keeps may change with the batch's shape; keeping all cannot."""
    logits = mx.array([[1.0, 2.0, 2.0, 2.0, 0.0]])
    for sampling in (Sampling(temperature=1.0, top_k=2), Sampling(temperature=1.0, top_p=0.5)):
        kept = np.array(Law(sampling).log_weights(logits))[0] > -np.inf
        assert kept.tolist() == [False, True, True, True, False]


def test_bf16_logits_are_judged_in_float32() -> None:
    """Activations of 16 bits must not make the law of 16 bits."""
    law = Law(Sampling(temperature=0.7, repetition_penalty=1.3))
    assert law.adjusted(mx.array(LOGITS).astype(mx.bfloat16), HISTORIES).dtype == mx.float32
