"""Rejection sampling of drafts, all rows of a verify at once; `choose` says where the method comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtp_daemon.engine.sampling.noise import FreshNoise


@dataclass(frozen=True)
class Trial:
    """One draft for each of R rows: `tokens` [R] int32, drawn from `law` (log probabilities [R, V]) without the
    tokens of the trials before. `offered` [R] bool is False where a row has no such draft.
    """

    tokens: mx.array
    law: mx.array
    offered: mx.array


def try_drafts(law: mx.array, trials: Sequence[Trial], noise: FreshNoise) -> tuple[mx.array, mx.array]:
    """Each row's token by the target's `law` (log probabilities [R, V]), and the trial that gave it.

    Returns `(tokens [R], accepted [R])`, int32, unevaluated: `accepted` is the number of the accepted trial, -1 when
    the token was drawn from what the rejected drafts left.
    """
    rows, vocabulary = law.shape
    uniform = noise.uniform(rows, max(1, len(trials)))
    left = mx.exp(law)
    taken = mx.zeros(left.shape, dtype=mx.bool_)
    accepted = mx.full((rows,), -1, dtype=mx.int32)
    tokens = mx.zeros((rows,), dtype=mx.int32)
    for number, trial in enumerate(trials):
        drawn_from = mx.where(taken, 0.0, mx.exp(trial.law))
        drawn_from = _normalised(drawn_from, drawn_from)
        at = trial.tokens[:, None]
        p = mx.take_along_axis(left, at, axis=-1)[:, 0]
        q = mx.take_along_axis(drawn_from, at, axis=-1)[:, 0]
        # A draft its law cannot draw was not drawn from it: a filter left fewer tokens than drafts were asked for.
        open_rows = (accepted < 0) & trial.offered & (q > 0)
        accept = open_rows & (uniform[:, number] * q < p)
        accepted = mx.where(accept, number, accepted)
        tokens = mx.where(accept, trial.tokens, tokens)
        residual = _normalised(mx.maximum(left - drawn_from, 0.0), left)
        left = mx.where((open_rows & ~accept)[:, None], residual, left)
        taken = taken | (trial.offered[:, None] & (mx.arange(vocabulary) == at))
    drawn = mx.argmax(mx.log(left) + noise.gumbel(rows, vocabulary), axis=-1).astype(mx.int32)
    return mx.where(accepted < 0, drawn, tokens), accepted


def _normalised(weights: mx.array, otherwise: mx.array) -> mx.array:
    """Rows of `weights` made to sum to 1; a row of zeros is replaced by that of `otherwise`."""
    total = weights.sum(axis=-1, keepdims=True)
    return mx.where(total > 0, weights / mx.where(total > 0, total, 1.0), otherwise)
