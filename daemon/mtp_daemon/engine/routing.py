"""What forwards routed to, kept until their results are there, then told to the loader."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtp_daemon.engine.stream_stats import COUNTED_BY_LAYER, StreamStats
from mtp_protocol.expert_messages import Used

Ran = tuple[int, int, tuple[int, ...]]
"""One layer of one forward: layer, tokens, distinct experts."""

PROMPT = 0
DECODE = 1
# A prompt's chunk may carry thousands of tokens; the loader learns of its last ones (its Needs tell it of the others).
PROMPT_ROWS = 128


@dataclass(slots=True)
class LayerRouting:
    """Router ids `[..., K]` of one layer and their weights; arrays of MLX where no one has read them yet."""

    layer: int
    ids: Any
    weights: mx.array | None
    counted: bool


@dataclass(slots=True)
class Forward:
    """One forward, from its first layer to its report."""

    step: int
    phase: int
    tokens: Sequence[int]  # may be known only once they are computed: read at the report, their number before
    layers: list[LayerRouting] = field(default_factory=list)
    told: int = 0  # how many layers, from the first, a Need has told the loader of
    hits: int = 0
    misses: int = 0

    def count(self, stats: StreamStats, layer: int, distinct: int, missed: int) -> None:
        """`distinct` experts of `layer`, `missed` of which were not resident."""
        self.hits += distinct - missed
        self.misses += missed
        stats.hits += distinct - missed
        stats.misses += missed
        tokens = len(self.tokens)
        stats.unions[tokens][distinct] += 1
        if tokens <= COUNTED_BY_LAYER:
            stats.layer_unions[layer, tokens][distinct] += 1

    def untold(self) -> list[Ran]:
        """The layers that no Need has told of, from now on told. Their ids have been computed: a later layer's are."""
        layers = self.layers[self.told :]
        self.told = len(self.layers)
        return [(y.layer, len(self.tokens), tuple(np.unique(_host(y.ids)).tolist())) for y in layers]

    def tell_next(self, layer: int, experts: Sequence[int]) -> Ran:
        """The layer that runs now is told of by the Need that it sends, before it is built."""
        self.told = len(self.layers) + 1
        return layer, len(self.tokens), tuple(experts)

    def restart(self, stats: StreamStats) -> None:
        """Nobody is to be told of the layers so far. Their ids have been computed."""
        self.count_whole(stats)
        self.layers.clear()
        self.told = self.hits = self.misses = 0

    def count_whole(self, stats: StreamStats) -> None:
        """Layers that were built without a look at their ids: all of it was resident. Their ids have been computed."""
        for y in self.layers:
            if not y.counted:
                y.counted = True
                self.count(stats, y.layer, distinct(_host(y.ids)), 0)

    def used(self, stats: StreamStats) -> Used:
        """The report. Reads arrays that are not evaluated yet, if any."""
        routing = []
        rows = len(self.tokens) if self.phase == DECODE else min(PROMPT_ROWS, len(self.tokens))
        self.count_whole(stats)
        for y in self.layers:
            ids = _host(y.ids)
            top_k = ids.shape[-1]
            last = ids.reshape(-1, top_k)[-rows:].tolist()
            weights = [[1 / top_k] * top_k] * len(last) if y.weights is None else _rows(y.weights, rows)
            routing.append((y.layer, tuple(map(tuple, last)), tuple(map(tuple, weights))))
        return Used(
            self.step, self.phase, tuple(self.tokens)[-rows:], tuple(routing), self.hits, self.misses, self.told
        )


def distinct(ids: NDArray[Any]) -> int:
    """How many experts there are in router ids `[..., K]`; one token's are all different."""
    return ids.size if ids.size == ids.shape[-1] else len(set(ids.ravel().tolist()))


def _rows(weights: mx.array, last: int) -> list[list[float]]:
    """The last rows of `[..., K]` as lists. No cast and no reshape of MLX's: that would be a graph to evaluate."""
    if weights.dtype != mx.bfloat16:
        rows: list[list[float]] = _host(weights).reshape(-1, weights.shape[-1])[-last:].tolist()
        return rows
    nested: Any = weights.tolist()  # numpy does not know bf16
    for _ in range(weights.ndim - 2):
        nested = [row for part in nested for row in part]
    rows = nested[-last:]
    return rows


def _host(ids: Any) -> NDArray[Any]:
    return np.array(ids, copy=False)
