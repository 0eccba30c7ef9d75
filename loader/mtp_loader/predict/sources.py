"""The sources of prediction. Each says, per expert of a layer, how likely the running forward needs it.

A forecast is a row `[experts]` that sums to about the layer's top-k, or None where the source has nothing to say. All
sources are told the same: the tokens of a forward when it starts, each layer's experts as they become known, hints as
they come, and each token's routing when the forward is over.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Experts = NDArray[np.intp]

_TOKENS_KEPT = 4096  # token ids in the table, 2 bytes a layer and expert each: most of a text's tokens are among these
_LEARNED_TOKENS = 8  # of a forward, its last ones: a prompt's chunk would otherwise outweigh all that was decoded
_NOT_SEEN = np.iinfo(np.uint16).max
_COUNT_LIMIT = 60000  # below the 65535 that a count holds, with room for one forward's additions
_RECENT_HALF_LIFE = 4.0  # tokens: the weakest source, of use only where no other speaks
_TRANSITION_DOUBT = 4.0  # a pair seen n times counts n / (n + 4): one that was seen once is hardly a rule
ODDS = (1.0 / (1.0 + np.exp(-np.arange(-6.0, 6.5, 0.5)))).astype(np.float32)
_HINT_PRIOR, _HINT_DOUBT = 0.7, 4.0  # of a bucket nothing is known about: right as often as a gate mostly is
_HINT_FADE = 0.998  # a layer's weight against the next one's: about the last 500 layers count


@dataclass(frozen=True)
class LayerShape:
    experts: int
    top_k: int


Shapes = Mapping[int, LayerShape]
Routing = Sequence[tuple[int, NDArray[np.intp]]]
"""Per layer, in order: `[tokens, top_k]` expert numbers."""


class Source(Protocol):
    """One way to predict."""

    name: str

    def start(self, tokens: Sequence[int]) -> None:
        """A forward over these token ids begins; empty where they are not known."""

    def observe(self, layer: int, experts: Experts) -> None:
        """The running forward needed these experts in `layer`."""

    def learn(self, tokens: Sequence[int], routing: Routing) -> None:
        """The forward is over; every token's experts."""

    def forecast(self, layer: int) -> Row | None:
        """For a layer that the running forward has not reached yet."""


class _Told:
    """A source that ignores what it does not need."""

    name = ""

    def start(self, tokens: Sequence[int]) -> None:
        del tokens

    def observe(self, layer: int, experts: Experts) -> None:
        del layer, experts

    def learn(self, tokens: Sequence[int], routing: Routing) -> None:
        del tokens, routing


class Hints(_Told):
    """The engine's own guess: a coming layer's gate on the present hidden, `ahead` layers before it is reached.

    A gate's weight is no chance: what it is worth is learned, by how often an expert named with about that weight came
    to be needed. `ODDS` cuts the weights, 0..1, where the cuts are even on the scale of log odds: a softmax's weights
    crowd near 0, a sigmoid's near 1.
    """

    def __init__(self, shapes: Shapes, ahead: int) -> None:
        self.name = f"hint{ahead}"
        self._shapes = shapes
        self._rows: dict[int, Row] = {}
        self._named: dict[int, tuple[Experts, Experts]] = {}  # layer -> experts and the buckets of their weights
        self._right = np.full(len(ODDS) + 1, _HINT_PRIOR * _HINT_DOUBT)
        self._seen = np.full(len(ODDS) + 1, _HINT_DOUBT)

    def start(self, tokens: Sequence[int]) -> None:
        self._rows.clear()
        self._named.clear()

    def observe(self, layer: int, experts: Experts) -> None:
        if (named := self._named.pop(layer, None)) is None:
            return
        self._right *= _HINT_FADE
        self._seen *= _HINT_FADE
        np.add.at(self._right, named[1], np.isin(named[0], experts))
        np.add.at(self._seen, named[1], 1.0)

    def hint(self, layer: int, weighted: Sequence[tuple[int, float]]) -> None:
        """`weighted` experts, best first; what is announced with weight 0 is still announced."""
        shape = self._shapes[layer]
        known = [(expert, weight) for expert, weight in weighted if 0 <= expert < shape.experts]
        experts = np.array([expert for expert, _ in known], dtype=np.intp)
        weights = np.array([weight for _, weight in known], dtype=np.float32)
        buckets = np.searchsorted(ODDS, weights)
        row = np.zeros(shape.experts, dtype=np.float32)
        # Within a bucket the larger weight goes first.
        row[experts] = self._right[buckets] / self._seen[buckets] + weights * np.float32(1e-3)
        self._rows[layer] = row
        self._named[layer] = experts, buckets

    def forecast(self, layer: int) -> Row | None:
        return self._rows.get(layer)


class Recent(_Told):
    """What the last tokens used in the same layer, the newest most."""

    name = "recent"

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._decay = np.float32(2.0 ** (-1 / _RECENT_HALF_LIFE))
        self._rows: dict[int, Row] = {}

    def learn(self, tokens: Sequence[int], routing: Routing) -> None:
        for layer, experts in routing:
            row = self._rows.get(layer)
            if row is None:
                row = self._rows[layer] = np.zeros(self._shapes[layer].experts, dtype=np.float32)
            for of_token in experts[-_LEARNED_TOKENS:]:
                row *= self._decay
                row[of_token] += np.float32(1.0) - self._decay

    def forecast(self, layer: int) -> Row | None:
        return self._rows.get(layer)


class Transitions(_Told):
    """Counts of which experts follow which in the next layer for the same token; 16-bit, halved as they fill up."""

    name = "transitions"

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        ids = sorted(shapes)
        self._before = dict(zip(ids[1:], ids, strict=False))
        self.counts: dict[int, NDArray[np.uint16]] = {}
        self._seen: dict[int, Experts] = {}

    def start(self, tokens: Sequence[int]) -> None:
        self._seen.clear()

    def observe(self, layer: int, experts: Experts) -> None:
        self._seen[layer] = experts

    def learn(self, tokens: Sequence[int], routing: Routing) -> None:
        by_layer = dict(routing)
        for layer, experts in routing:
            before = by_layer.get(self._before.get(layer, -1))
            if before is None:
                continue
            counts = self._table(layer)
            for source, target in zip(before[-_LEARNED_TOKENS:], experts[-_LEARNED_TOKENS:], strict=True):
                counts[source[:, None], target] += 1
                if counts[source[0], target[0]] > _COUNT_LIMIT:
                    counts >>= 1

    def forecast(self, layer: int) -> Row | None:
        source = self._seen.get(self._before.get(layer, -1))
        if source is None or layer not in self.counts:
            return None
        rows = self.counts[layer][source].astype(np.float32)
        sums = rows.sum(axis=1, keepdims=True)
        row: Row = (rows / (sums + _TRANSITION_DOUBT)).mean(axis=0) * np.float32(self._shapes[layer].top_k)
        return row

    def shape(self, layer: int) -> tuple[int, int]:
        """Of the layer's counts: experts before, experts. The first layer has none before it."""
        before = self._before.get(layer)
        return (0 if before is None else self._shapes[before].experts, self._shapes[layer].experts)

    def _table(self, layer: int) -> NDArray[np.uint16]:
        if layer not in self.counts:
            self.counts[layer] = np.zeros(self.shape(layer), dtype=np.uint16)
        return self.counts[layer]


class TokenTable(_Told):
    """What each token id used when it was last fed: early layers depend strongly on the token itself."""

    name = "tokens"

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._column = {layer: i for i, layer in enumerate(sorted(shapes))}
        self._width = max((s.top_k for s in shapes.values()), default=0)
        self.table = np.full((_TOKENS_KEPT, len(shapes), self._width), _NOT_SEEN, dtype=np.uint16)
        self.rows = _unused(0)  # token id -> row of the table, least recently fed first
        self._now: list[int] = []

    @property
    def fed(self) -> list[int]:
        """The token ids that have a row, least recently fed first."""
        return [token for token in self.rows if token >= 0]

    def restore(self, ids: Sequence[int], experts: NDArray[np.uint16]) -> None:
        """In place of what it knows: `ids`, least recently fed first, with their `experts` [n, layers, top_k]."""
        self.table[: len(ids)] = experts
        self.rows = _unused(len(ids))
        self.rows.update((token, row) for row, token in enumerate(ids))

    def start(self, tokens: Sequence[int]) -> None:
        self._now = [self.rows[token] for token in tokens[:_LEARNED_TOKENS] if token in self.rows]

    def learn(self, tokens: Sequence[int], routing: Routing) -> None:
        rows = np.array([self._row(token) for token in tokens], dtype=np.intp)
        for layer, experts in routing:
            if len(experts) == len(rows):
                self.table[rows, self._column[layer], : experts.shape[1]] = experts

    def forecast(self, layer: int) -> Row | None:
        if not self._now:
            return None
        experts = self.table[self._now, self._column[layer]].ravel()
        experts = experts[experts != _NOT_SEEN]
        if not len(experts):
            return None
        shape = self._shapes[layer]
        row = np.bincount(experts, minlength=shape.experts)[: shape.experts].astype(np.float32)
        return np.minimum(row, np.float32(1.0))

    def _row(self, token: int) -> int:
        row = self.rows.pop(token, None)
        if row is None:
            row = self.rows.popitem(last=False)[1]
            self.table[row] = _NOT_SEEN
        self.rows[token] = row
        return row


def _unused(first: int) -> OrderedDict[int, int]:
    """The rows from `first` on, under negative ids: nobody has them yet. It has its final size from the start.

    A dictionary of entries that come and go takes more room than one that was filled once, so each goes and comes once.
    """
    rows = OrderedDict((-1 - row, row) for row in range(first, _TOKENS_KEPT))
    for token in list(rows):
        rows[token] = rows.pop(token)
    return rows
