"""Rejection sampling of drafts, all rows of a verify at once; `choose` says where the method comes from."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from mtp_daemon.engine.sampling.noise import FreshNoise


class Offered(Protocol):
    """What is read of a draft; `choose.Draft` says what the fields mean."""

    @property
    def token(self) -> int: ...
    @property
    def parent(self) -> int: ...
    @property
    def law(self) -> mx.array | None: ...


def try_drafts(law: mx.array, drafts: Sequence[Offered], noise: FreshNoise) -> tuple[mx.array, mx.array]:
    """Each row's token by the target's `law` (log probabilities [R, V]), and which draft it is.

    Returns `(tokens [R], tried [R])`, int32: `tried` is the index of the accepted draft, -1 when the token was drawn
    from what the rejected ones left. Unevaluated.
    """
    rows, vocabulary = law.shape
    turns = _turns(rows, drafts)
    uniform = noise.uniform(rows, max(1, len(turns)))
    left = mx.exp(law)
    taken = mx.zeros_like(left)
    accepted = mx.full((rows,), -1, dtype=mx.int32)
    token = mx.zeros((rows,), dtype=mx.int32)
    for turn, offered in enumerate(turns):
        drawn_from = mx.stack([_row_law(drafts, index, vocabulary) for index in offered])
        drawn_from = _normalised(mx.where(taken > 0, 0.0, drawn_from), drawn_from * 0)
        index = mx.array(offered, dtype=mx.int32)
        drafted = mx.array([drafts[i].token if i >= 0 else 0 for i in offered], dtype=mx.int32)
        p = mx.take_along_axis(left, drafted[:, None], axis=-1)[:, 0]
        q = mx.take_along_axis(drawn_from, drafted[:, None], axis=-1)[:, 0]
        # A draft its law cannot draw was not drawn from it: a filter left fewer tokens than drafts were asked for.
        open_rows = (accepted < 0) & (index >= 0) & (q > 0)
        accept = open_rows & (uniform[:, turn] * q < p)
        accepted = mx.where(accept, index, accepted)
        token = mx.where(accept, drafted, token)
        residual = _normalised(mx.maximum(left - drawn_from, 0.0), left)
        left = mx.where((open_rows & ~accept)[:, None], residual, left)
        taken = mx.where(mx.arange(vocabulary) == drafted[:, None], 1.0, taken)
    drawn = mx.argmax(mx.log(left) + noise.gumbel(rows, vocabulary), axis=-1).astype(mx.int32)
    return mx.where(accepted < 0, drawn, token), accepted


def _turns(rows: int, drafts: Sequence[Offered]) -> list[list[int]]:
    """`turns[k][r]` is the index of the k-th draft of parent r, -1 where it has fewer."""
    children: list[list[int]] = [[] for _ in range(rows)]
    for index, draft in enumerate(drafts):
        children[draft.parent].append(index)
    return [[c[k] if k < len(c) else -1 for c in children] for k in range(max(map(len, children)))]


def _row_law(drafts: Sequence[Offered], index: int, vocabulary: int) -> mx.array:
    """The probabilities [V] a draft was drawn from; all on its token when no chance was in it."""
    if index < 0:
        return mx.zeros((vocabulary,))
    law = drafts[index].law
    if law is None:
        return mx.array(np.eye(1, vocabulary, drafts[index].token, dtype=np.float32)[0])
    return mx.exp(law)


def _normalised(weights: mx.array, otherwise: mx.array) -> mx.array:
    """Rows of `weights` made to sum to 1; a row of zeros is replaced by that of `otherwise`."""
    total = weights.sum(axis=-1, keepdims=True)
    return mx.where(total > 0, weights / mx.where(total > 0, total, 1.0), otherwise)
