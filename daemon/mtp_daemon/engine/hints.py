"""Guessing the next layers' experts: their routers on this layer's rows, read together with this layer's own ids."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtp_daemon.engine.routing import PROMPT
from mtp_daemon.engine.stream import ExpertStream
from mtp_protocol.expert_messages import Hint

Probe = Callable[[mx.array], mx.array]
"""`[..., H]` to `[..., experts]`: how much the router of a layer likes each expert, larger is better, 0..1."""


class Lookahead:
    """What one layer guesses of those after it: `(layer, probe)`, nearest first. Costs a gate each, no host read."""

    def __init__(self, stream: ExpertStream, probes: Sequence[tuple[int, Probe]]) -> None:
        self._stream = stream
        self._probes = tuple(probes)

    def guess(self, x: mx.array) -> list[mx.array]:
        """Two arrays a layer ahead, experts and how sure, to be evaluated with the router's ids."""
        settings = self._stream.settings
        if self._stream.now.phase == PROMPT and not settings.hint_prompts:
            return []
        guesses = []
        for layer, probe in self._probes:
            likes = probe(x)
            count = min(likes.shape[-1], max(1, round(settings.hint_experts * self._stream.top_k[layer])))
            best = mx.argpartition(-likes, kth=count - 1, axis=-1)[..., :count]
            guesses += [best, mx.take_along_axis(likes, best, axis=-1).astype(mx.float32)]
        return guesses

    def tell(self, guesses: Sequence[mx.array]) -> None:
        """Send the evaluated guesses, those that are resident left out."""
        layers = []
        for i in range(0, len(guesses), 2):
            layer = self._probes[i // 2][0]
            best, likes = (np.array(a, copy=False).reshape(-1) for a in guesses[i : i + 2])
            if missing := _strongest(best, likes, self._stream.residency.table(layer)):
                layers.append((layer, missing))
        if layers:
            self._stream.stats.hints += 1
            self._stream.link.send(Hint(self._stream.now.step, tuple(layers)))


def _strongest(best: NDArray[Any], likes: NDArray[Any], table: NDArray[Any]) -> tuple[tuple[int, float], ...]:
    """Guessed experts that are not resident, each with its largest weight over the tokens, best first."""
    weights: dict[int, float] = {}
    for expert, like in zip(best.tolist(), likes.tolist(), strict=True):
        if table[expert] < 0:
            weights[expert] = max(weights.get(expert, 0.0), min(1.0, max(0.0, like)))
    return tuple(sorted(weights.items(), key=lambda item: -item[1]))
