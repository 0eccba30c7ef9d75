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


@pytest.mark.parametrize("sampling", PENALTIES)
def test_penalties_and_bias_are_mlx_lms_over_prompt_and_answer(sampling: Sampling) -> None:
    """`repetition_penalty` 1.3 is never dropped, and means what mlx-lm's processor of that name means."""
    ours = Law(sampling).adjusted(mx.array(LOGITS), HISTORIES)
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
        theirs = mx.array(LOGITS[row : row + 1])
        for processor in processors:
            theirs = processor(mx.array(history), theirs)
        assert np.allclose(np.array(ours[row]), np.array(theirs[0]), atol=1e-5)


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
