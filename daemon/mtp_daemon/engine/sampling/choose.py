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

from mtp_daemon.engine.sampling.law import PENALTY_WINDOW, Law
from mtp_daemon.engine.sampling.noise import FreshNoise, gumbel, position_key
from mtp_daemon.engine.sampling.rejection import try_drafts
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


@dataclass(frozen=True)
class Draft:
    """A drafted token. `parent` is the verify row whose logits judge it; `row` the row that was fed with it, None

    when it was not fed (verified position by position, or a branch kept in reserve). `law` [V] as in `Proposal`;
    None for a draft chosen without chance. Drafts of one parent are tried in the order they are listed.
    """

    token: int
    parent: int
    row: int | None
    law: mx.array | None = None


@dataclass(frozen=True)
class Verdict:
    """`ids`: the accepted run and, last, the token the target adds. `rows[i]` is the row whose logits chose `ids[i]`:

    row 0, then the rows of the accepted drafts in order. `matched[i]` is the index of the draft that equals `ids[i]`;
    the last is None, or a draft that was not fed. `logprobs` has one entry an id when they were asked for.
    """

    ids: tuple[int, ...]
    rows: tuple[int, ...]
    matched: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def accepted(self) -> int:
        """How many fed drafts were accepted."""
        return len(self.rows) - 1


def chain(tokens: Sequence[int], laws: Sequence[mx.array | None] | None = None) -> list[Draft]:
    """The drafts of one path fed as rows 1, 2, … after row 0."""
    given = laws if laws is not None else [None] * len(tokens)
    return [Draft(token, i, i + 1, law) for i, (token, law) in enumerate(zip(tokens, given, strict=True))]


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
        weights = law
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
        paths = _paths(logits.shape[0], drafts)
        adjusted = self.law.adjusted(logits, [_tail(committed, path) for path in paths])
        if self._by_rejection:
            tokens, tried = try_drafts(self.law.log_probabilities(adjusted), drafts, self._fresh)
        else:
            weights = self.law.log_weights(adjusted)
            if not self.sampling.greedy:
                weights = weights + self._keyed_noise([len(committed) + len(path) for path in paths], logits.shape[-1])
            tokens, tried = mx.argmax(weights, axis=-1), None
        reported = self._report(adjusted, tokens) if self.sampling.logprobs else ()
        mx.eval(tokens, *([] if tried is None else [tried]), *reported)
        chosen: list[int] = _host(tokens)
        if tried is None:
            by_row = _equal_drafts(chosen, drafts)
        else:
            by_row = [index if index >= 0 else None for index in _host(tried)]
        return _walk(chosen, by_row, drafts, _logprobs(chosen, reported))

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


def _paths(rows: int, drafts: Sequence[Draft]) -> list[list[int]]:
    """The drafted tokens that lead to each row. Raises ValueError when a row has no way to it, or two."""
    paths: dict[int, list[int]] = {0: []}
    for draft in drafts:
        if draft.parent not in paths:
            raise ValueError(f"the draft {draft.token} hangs on row {draft.parent}, which nothing leads to")
        if draft.row is None:
            continue
        if draft.row in paths:
            raise ValueError(f"row {draft.row} is led to twice")
        paths[draft.row] = [*paths[draft.parent], draft.token]
    if sorted(paths) != list(range(rows)):
        raise ValueError(f"the drafts lead to rows {sorted(paths)} of {rows} that were verified")
    return [paths[row] for row in range(rows)]


def _equal_drafts(tokens: Sequence[int], drafts: Sequence[Draft]) -> list[int | None]:
    """For each row the draft of that parent that equals the target's choice; fed ones go first."""
    found: list[int | None] = [None] * len(tokens)
    for index, draft in enumerate(drafts):
        if draft.token == tokens[draft.parent]:
            before = found[draft.parent]
            if before is None or (drafts[before].row is None and draft.row is not None):
                found[draft.parent] = index
    return found


def _walk(
    tokens: Sequence[int],
    by_row: Sequence[int | None],
    drafts: Sequence[Draft],
    logprobs: Sequence[TokenLogprobs],
) -> Verdict:
    """Follows the accepted drafts from row 0 to the first row none of whose fed drafts was accepted."""
    rows: list[int] = []
    row: int | None = 0
    while row is not None:
        rows.append(row)
        index = by_row[row]
        row = None if index is None else drafts[index].row
    return Verdict(
        ids=tuple(tokens[r] for r in rows),
        rows=tuple(rows),
        matched=tuple(by_row[r] for r in rows),
        logprobs=tuple(logprobs[r] for r in rows) if logprobs else (),
    )


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
