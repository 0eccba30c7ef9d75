"""The law of the next token: what a request's settings make of the model's logits.

Order, as mlx-lm's `generate_step` has it with `make_logits_processors` and `make_sampler` (mlx_lm/sample_utils.py):
logit bias, repetition penalty, presence penalty, frequency penalty, log-softmax; then top-p, min-p, top-k, all three
measured at temperature 1; then the temperature. The penalties look at the last `PENALTY_WINDOW` tokens of prompt and
answer together, mlx-lm's default. One difference, for determinism: tokens that tie with the last one a filter keeps are
kept too. A greedy request stays in the logits' own type, rounded where mlx-lm rounds, since a rounding can make a tie
and the first of those that tie is chosen; what is drawn by chance is computed in float32.
"""

from collections.abc import Sequence
from math import log

import mlx.core as mx
import numpy as np

from mtp_protocol.sampling import Sampling

PENALTY_WINDOW = 20
# What is colder is as cold: float32 makes a smaller temperature zero, and log weights over it infinite or no number.
COLDEST = 1e-30


class Law:
    """One request's settings applied to rows of logits, of the target or of the MTP head alike."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._bias = sorted(sampling.logit_bias.items())
        self._penalised = (
            sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        )

    def adjusted(self, logits: mx.array, histories: Sequence[Sequence[int]]) -> mx.array:
        """Bias and penalties on `logits` [R, V]: [R, V], in float32 unless greedy. `histories[r]` are the tokens before
        row r's choice; only the last `PENALTY_WINDOW` of each are read.
        """
        scores = logits if self.sampling.greedy else logits.astype(mx.float32)
        vocabulary = scores.shape[-1]
        bias = [(token, value) for token, value in self._bias if token < vocabulary]
        if bias:
            scores = scores.at[:, mx.array([t for t, _ in bias])].add(mx.array([v for _, v in bias]))
        if self._penalised:
            scores = self._penalise(scores, histories)
        return scores

    def _penalise(self, scores: mx.array, histories: Sequence[Sequence[int]]) -> mx.array:
        settings = self.sampling
        windows, live = _windows(histories)
        # A token that is in the window twice is written twice, with the same value; only its frequency adds up.
        seen = mx.take_along_axis(scores, windows, axis=-1)
        seen = mx.where(seen < 0, seen * settings.repetition_penalty, seen / settings.repetition_penalty)
        scores = mx.put_along_axis(scores, windows, seen - settings.presence_penalty, axis=-1)
        if settings.frequency_penalty == 0.0:
            return scores
        rows = mx.arange(len(histories))[:, None]
        return scores.at[rows, windows].subtract(live.astype(scores.dtype) * settings.frequency_penalty)

    def log_weights(self, adjusted: mx.array) -> mx.array:
        """Filters and temperature on `adjusted` [R, V]: log weights [R, V], -inf where a filter drops a token.

        Not normalised where filters dropped something: `log_probabilities` is. Greedy settings have no filters and
        temperature 1 here; mlx-lm takes the argmax of log probabilities, whose rounding can differ from the logits'.
        """
        settings = self.sampling
        if settings.greedy:
            return _log_softmax(adjusted)
        kept = _log_softmax(adjusted)
        if settings.top_p < 1.0:
            kept = _top_p(kept, settings.top_p)
        if settings.min_p > 0.0:
            floor = mx.max(kept, axis=-1, keepdims=True) + log(settings.min_p)
            kept = mx.where(kept < floor, -mx.inf, kept)
        if 0 < settings.top_k < kept.shape[-1]:
            kth = mx.topk(kept, settings.top_k, axis=-1).min(axis=-1, keepdims=True)
            kept = mx.where(kept < kth, -mx.inf, kept)
        return kept / max(settings.temperature, COLDEST)

    def log_probabilities(self, adjusted: mx.array) -> mx.array:
        """The normalised law [R, V], float32, -inf for a token it never draws. Greedy: that of temperature 1."""
        return _log_softmax(adjusted.astype(mx.float32) if self.sampling.greedy else self.log_weights(adjusted))


def _log_softmax(scores: mx.array) -> mx.array:
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)


def _top_p(log_probabilities: mx.array, top_p: float) -> mx.array:
    """Keeps the fewest most probable tokens whose mass reaches `top_p` (nucleus sampling, Holtzman et al. 2020)."""
    falling = -mx.sort(-log_probabilities, axis=-1)
    probabilities = mx.exp(falling)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    needed = mx.maximum((before < top_p).sum(axis=-1, keepdims=True), 1)
    last = mx.take_along_axis(falling, needed - 1, axis=-1)
    return mx.where(log_probabilities < last, -mx.inf, log_probabilities)


def _windows(histories: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
    """The last tokens of each history [R, PENALTY_WINDOW], and 1 where one is really there, else 0, same shape.

    A shorter history repeats its first token. An empty one has no window: the caller's prompt is never empty.
    """
    tokens = np.empty((len(histories), PENALTY_WINDOW), dtype=np.uint32)
    live = np.zeros((len(histories), PENALTY_WINDOW), dtype=np.float32)
    for row, history in enumerate(histories):
        window = list(history[-PENALTY_WINDOW:])
        tokens[row] = window + window[:1] * (PENALTY_WINDOW - len(window))
        live[row, : len(window)] = 1.0
    return mx.array(tokens), mx.array(live)
