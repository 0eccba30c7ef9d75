"""Choosing tokens: what the head drafts, and what the target makes of the drafts. Exact in every mode.

Greedy and seeded requests: the target's choice in each row is the argmax of its log weights (plus Gumbel noise keyed
by (seed, position) when a seed is given), and a draft is accepted when it equals that choice. The text then depends
on nothing but prompt, settings and seed.

Unseeded requests: rejection sampling. A draft drawn from q is accepted with probability min(1, p/q), else the token
comes from the residual max(p - q, 0), renormalised (Leviathan et al. 2023, "Fast inference from transformers via
speculative decoding"). Several drafts of one parent are tried in turn, each against the residual that the one before
left (multi-round speculative sampling of SpecInfer, Miao et al. 2024). The law of the output is the target's.

One thing only the caller can break: whether a drawn draft is offered must not depend on which token was drawn. To stop
drafting early, decide on `Proposal.confidence`, which is a property of the law, not of the draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtp_daemon.engine.sampling.drafts import Draft, Verdict, equal_drafts, paths_to_rows, turns_of, walk
from mtp_daemon.engine.sampling.law import PENALTY_WINDOW, Law
from mtp_daemon.engine.sampling.noise import FreshNoise, gumbel, position_key
from mtp_daemon.engine.sampling.rejection import Trial, try_drafts
from mtp_protocol.client_messages import TokenLogprobs
from mtp_protocol.sampling import Sampling


@dataclass(frozen=True)
class Proposal:
    """Drafts for the next token of B paths, unevaluated: the caller chooses when the host reads them.

    `tokens` [B, count] int32, in the order to try them. `confidence` [B] float32: the largest probability of each
    path's law. `law` [B, V]: the log probabilities they were drawn from without replacement, to be handed on in
    `Draft.law`; None where the choice had no chance in it (greedy, seeded).
    """

    tokens: mx.array
    confidence: mx.array
    law: mx.array | None


class Chooser:
    """One request's choices. Owns the request's fresh noise; everything else is a function of its arguments."""

    def __init__(self, sampling: Sampling, fresh_seed: int | None = None) -> None:
        """`fresh_seed` fixes an unseeded request's noise, for tests."""
        self.sampling = sampling
        self.law = Law(sampling)
        self._fresh = FreshNoise(fresh_seed)
        self._by_rejection = sampling.seed is None and not sampling.greedy

    def propose(
        self, logits: mx.array, committed: Sequence[int], paths: Sequence[Sequence[int]] = ((),), count: int = 1
    ) -> Proposal:
        """Up to `count` drafts from the head's `logits` [B, V]; `paths[b]` are the drafts after `committed` that
        led to row b. Reads nothing on the host.
        """
        vocabulary = logits.shape[-1]
        adjusted = self.law.adjusted(logits, [_tail(committed, path) for path in paths])
        law = self.law.log_probabilities(adjusted)
        weights = adjusted  # greedy: the argmax needs no normalising
        if self._by_rejection:
            weights = law + self._fresh.gumbel(len(paths), vocabulary)
        elif not self.sampling.greedy:
            weights = law + self._keyed_noise([len(committed) + len(path) for path in paths], vocabulary)
        confidence = mx.exp(mx.max(law, axis=-1))
        return Proposal(_best(weights, count), confidence, law if self._by_rejection else None)

    def judge(self, logits: mx.array, committed: Sequence[int], drafts: Sequence[Draft] = ()) -> Verdict:
        """The target's verdict on `drafts` from the verify's `logits` [R, V]; the host reads once.

        Row 0 was fed with the last of `committed` (prompt and answer so far). Without drafts: plain decoding.
        """
        paths = paths_to_rows(logits.shape[0], drafts)
        adjusted = self.law.adjusted(logits, [_tail(committed, path) for path in paths])
        if self._by_rejection:
            turns = turns_of(len(paths), drafts)
            trials = [_trial(drafts, turn, logits.shape[-1]) for turn in turns]
            tokens, accepted = try_drafts(self.law.log_probabilities(adjusted), trials, self._fresh)
        else:
            turns = []
            weights = self.law.log_weights(adjusted)
            if not self.sampling.greedy:
                weights = weights + self._keyed_noise([len(committed) + len(path) for path in paths], logits.shape[-1])
            tokens = accepted = mx.argmax(weights, axis=-1)
        reported = self._report(adjusted, tokens) if self.sampling.logprobs else ()
        mx.eval(tokens, accepted, *reported)
        chosen: list[int] = _host(tokens)
        if self._by_rejection:
            by_row = [turns[turn][row] if turn >= 0 else None for row, turn in enumerate(_host(accepted))]
        else:
            by_row = equal_drafts(chosen, drafts)
        return walk(chosen, by_row, drafts, _logprobs(chosen, reported))

    def _keyed_noise(self, positions: Sequence[int], vocabulary: int) -> mx.array:
        seed = self.sampling.seed
        assert seed is not None
        return gumbel([position_key(seed, position) for position in positions], vocabulary)

    def _report(self, adjusted: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        law = self.law.log_probabilities(adjusted)
        best = _best(law, self.sampling.logprobs)
        own = mx.take_along_axis(law, tokens[:, None], axis=-1)[:, 0]
        return own, best, mx.take_along_axis(law, best, axis=-1)


def _tail(committed: Sequence[int], path: Sequence[int]) -> list[int]:
    return [*committed[-PENALTY_WINDOW:], *path]


def _best(weights: mx.array, count: int) -> mx.array:
    """The `count` largest of each row, largest first: int32 [R, min(count, V)]."""
    count = min(count, weights.shape[-1])
    if count == 1:
        return mx.argmax(weights, axis=-1, keepdims=True).astype(mx.int32)
    some = mx.argpartition(-weights, kth=count - 1, axis=-1)[:, :count]
    order = mx.argsort(-mx.take_along_axis(weights, some, axis=-1), axis=-1)
    return mx.take_along_axis(some, order, axis=-1).astype(mx.int32)


def _trial(drafts: Sequence[Draft], turn: Sequence[int | None], vocabulary: int) -> Trial:
    offered = [None if index is None else drafts[index] for index in turn]
    return Trial(
        tokens=mx.array([0 if draft is None else draft.token for draft in offered], dtype=mx.int32),
        law=mx.stack([_law_of(draft, vocabulary) for draft in offered]),
        offered=mx.array([draft is not None for draft in offered]),
    )


def _law_of(draft: Draft | None, vocabulary: int) -> mx.array:
    """The law [V] a draft was drawn from: all on its token when no chance was in it."""
    if draft is not None and draft.law is not None:
        return draft.law
    token = 0 if draft is None else draft.token
    return mx.where(mx.arange(vocabulary) == token, 0.0, -mx.inf)


def _host(array: mx.array) -> list[Any]:
    values = array.tolist()
    assert isinstance(values, list)
    return values


def _logprobs(tokens: Sequence[int], reported: Sequence[mx.array]) -> list[TokenLogprobs]:
    """One entry a row. A token that a filter dropped has no finite log probability and is no alternative."""
    if not reported:
        return []
    own, best, values = (_host(array) for array in reported)
    return [
        TokenLogprobs(token, logprob, tuple((t, v) for t, v in zip(row, top, strict=True) if v > -mx.inf))
        for token, logprob, row, top in zip(tokens, own, best, values, strict=True)
    ]
