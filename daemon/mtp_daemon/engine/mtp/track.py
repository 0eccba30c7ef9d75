"""The head's cache during a request: kept aligned with the target's after every round.

The rule: with n tokens in the history, of which the target was fed n - 1, the pairs (token i + 1, hidden row i) are
known for i = 0 .. n - 2. They are the head's rows; each is in its cache or waiting in order, so

    cache.offset + waiting == n - 1

and every cached row was made of the target's own hidden row. After prefill all but the last wait no more:
`cache.offset == n - 2` (0 for a prompt of one token, which has no pair). A draft takes up the waiting rows; the rows it
makes of its own outputs are dropped again when it ends.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import mlx.core as mx

from mtp_daemon.engine.decode.host import FedTokens
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_daemon.engine.stream import DECODE, Stream
from mtp_daemon.engine.trunk import Trunk

MOST_WAITING = 64
"""Rows wait while nothing is drafted, to be taken up as one batch: no more than this many."""


class HeadTrack:
    """Owner of one request's head cache."""

    def __init__(self, head: MtpHead, trunk: Trunk, stream: Stream) -> None:
        self.head, self.trunk, self.stream = head, trunk, stream
        self.cache = head.make_cache()
        self._tokens: list[int] = []
        self._hidden: list[mx.array] = []  # [1, r, H] each; together as many rows as tokens

    @property
    def waiting(self) -> int:
        """Pairs known, but not in the cache yet."""
        return len(self._tokens)

    @property
    def arrays(self) -> list[mx.array]:
        """What priming leaves to evaluate."""
        if self.cache.keys is None:
            return list(self._hidden)
        return [self.cache.keys, self.cache.values, *self._hidden]

    def take(self, tokens: Sequence[int], hidden: mx.array) -> None:
        """The pairs (tokens[j], hidden[0, j]) follow those known; hidden [1, len(tokens), H]."""
        self._tokens.extend(tokens)
        self._hidden.append(hidden)
        if len(self._tokens) > MOST_WAITING:
            self.absorb(all_rows=False)

    def absorb(self, *, all_rows: bool) -> None:
        """Waiting rows enter the cache; the last one stays back unless `all_rows`: a draft begins with it."""
        x = self._waiting_inputs(len(self._tokens) if all_rows else len(self._tokens) - 1)
        if x is not None:
            self.head.absorb(x, self.cache)

    def drafting(self) -> "Drafting":
        """A draft from here; use as a context."""
        return Drafting(self)

    def first_input(self) -> tuple[int, mx.array]:
        """The last known pair as `(token, x [1, 1, H])`; it stays waiting."""
        token, hidden = self._tokens[-1], self._hidden[-1][:, -1:]
        return token, self.head.join(self.trunk.embed(mx.array([[token]])), hidden)

    def first_entered(self) -> None:
        """The last known pair has entered the cache."""
        self._tokens.clear()
        self._hidden.clear()

    def _waiting_inputs(self, count: int) -> mx.array | None:
        if count <= 0:
            return None
        hidden = mx.concatenate(self._hidden, axis=1) if len(self._hidden) > 1 else self._hidden[0]
        tokens, self._tokens = self._tokens[:count], self._tokens[count:]
        self._hidden = [hidden[:, count:]] if self._tokens else []
        return self.head.join(self.trunk.embed(mx.array([tokens])), hidden[:, :count])


class Drafting:
    """The head's forwards of one draft. Leaving the context drops every row that was not the target's."""

    def __init__(self, track: HeadTrack) -> None:
        self._track = track
        self._cache = track.cache
        self._base = 0
        self._narrow: tuple[Any, Any] | None = None

    def __enter__(self) -> "Drafting":
        self._track.absorb(all_rows=False)
        self._base = self._cache.offset
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._narrow is not None:
            self._cache.keys, self._cache.values = self._narrow
        self._cache.offset = self._base

    def first(self) -> mx.array:
        """`out` [1, 1, H] for the last known pair, whose row stays in the cache."""
        token, x = self._track.first_input()
        with self._track.stream.forward([token], DECODE):
            out = self._track.head.step(x, self._cache)
        self._track.first_entered()
        self._base = self._cache.offset
        return out

    def next(
        self, tokens: mx.array, out: mx.array, parents: Sequence[int], before_experts: Callable[[mx.array], None]
    ) -> mx.array:
        """`out` [B, 1, H] for B paths: path b feeds `tokens[b]` after the row `parents[b]` of the last `out`.

        `tokens` [B] need not have been read by the host. `before_experts` is called with the router's ids before any
        expert is asked for; what it raises ends the step.
        """
        same = list(parents) == list(range(out.shape[0]))
        if not same:
            self._select(parents)
            out = out[mx.array(list(parents))]
        embedded = self._track.trunk.embed(tokens[:, None])
        head = self._track.head
        head.before_experts = before_experts
        try:
            with self._track.stream.forward(FedTokens(tokens), DECODE):
                return head.step(head.join(embedded, out), self._cache)
        finally:
            head.before_experts = None

    def _select(self, parents: Sequence[int]) -> None:
        """Batch rows of the cache become copies of their parents' rows; the narrow arrays are put back at the end."""
        cache = self._cache
        if self._narrow is None:
            self._narrow = cache.keys, cache.values
        rows = mx.array(list(parents))
        cache.keys = mx.contiguous(cache.keys[rows, :, : cache.offset])
        cache.values = mx.contiguous(cache.values[rows, :, : cache.offset])

    def logits(self, out: mx.array) -> mx.array:
        """The head's logits [B, V] by the target's own output layer."""
        return self._track.trunk.logits(out)[:, 0]
