"""Guessing the next layers' experts: their routers on this layer's residual, read together with this layer's own ids.

What a later layer's router will see is its own norm of the residual stream as it stands there. Of what is still to be
added on the way, this layer's routed experts are not known yet, but its shared expert is (it is computed in any case).
So a guess is the later layer's norm and router on the residual before this MoE plus the shared expert's output. The
measured alternatives, and what they recall, are in docs/policies.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from numpy.typing import NDArray

from mtp_daemon.engine.routing import PROMPT
from mtp_daemon.engine.stream import ExpertStream
from mtp_protocol.expert_messages import Hint

Probe = Callable[[mx.array], mx.array]
"""Rows `[..., H]` to `[..., experts]`: how much the router of a layer likes each expert, larger is better, 0..1."""


class Norm:
    """The norm before one layer's MoE block: applied to other layers' residuals, and heard when its own layer runs.

    A module's `__call__` is looked up on its class, so the instance gets a subclass of its own class; its parameter
    keeps its name.
    """

    def __init__(self, norm: Module) -> None:
        plain: Any = type(norm)
        hearing = self
        self._norm, self._plain = norm, plain
        self.residual: mx.array | None = None

        class HeardNorm(plain):  # type: ignore[misc]
            def __call__(self, x: mx.array) -> Any:
                hearing.residual = x
                return super().__call__(x)

        object.__setattr__(norm, "__class__", HeardNorm)

    def apply(self, residual: mx.array) -> mx.array:
        """`[..., H]` as the layer's router would get it."""
        rows: mx.array = self._plain.__call__(self._norm, residual)
        return rows


class Lookahead:
    """What one layer guesses of those after it: `(layer, probe)`, nearest first; probes take the residual `[..., H]`.

    Costs a norm and a gate for each of them, no host read.
    """

    def __init__(self, stream: ExpertStream, norm: Norm, probes: Sequence[tuple[int, Probe]]) -> None:
        self._stream, self._norm = stream, norm
        self._probes = tuple(probes)

    def take_residual(self) -> mx.array | None:
        """What the layer's norm was given just now; held no longer than that, a prompt's is large."""
        residual, self._norm.residual = self._norm.residual, None
        return residual

    def guess(self, residual: mx.array, beside: Sequence[mx.array]) -> list[mx.array]:
        """Two arrays a layer ahead, experts and how sure, to be evaluated with the router's ids.

        `beside` are what the block adds to the routed experts' sum: the shared expert's rows, if it has one.
        """
        if not self._stream.link.hinting or self._stream.now.phase == PROMPT:  # a chunk needs nearly every expert
            return []
        for rows in beside:
            residual = residual + rows
        guesses = []
        for layer, probe in self._probes:
            likes = probe(residual)
            count = self._stream.top_k[layer]
            best = mx.argpartition(-likes, kth=count - 1, axis=-1)[..., :count]
            guesses += [best, mx.take_along_axis(likes, best, axis=-1).astype(mx.float32)]
        return guesses

    def tell(self, guesses: Sequence[mx.array]) -> None:
        """Send the evaluated guesses, unless all that they name is resident.

        Resident ones are named with the others: the loader learns from them what a guess is worth.
        """
        layers, missing = [], False
        for i in range(0, len(guesses), 2):
            layer = self._probes[i // 2][0]
            best, likes = (np.array(a, copy=False).reshape(-1) for a in guesses[i : i + 2])
            layers.append((layer, _strongest(best, likes)))
            missing = missing or bool((self._stream.residency.table(layer)[best] < 0).any())
        if missing:
            self._stream.stats.hints += 1
            self._stream.link.send(Hint(self._stream.now.step, tuple(layers)))


def _strongest(best: NDArray[Any], likes: NDArray[Any]) -> tuple[tuple[int, float], ...]:
    """Guessed experts, each with its largest weight over the tokens, best first."""
    weights: dict[int, float] = {}
    for expert, like in zip(best.tolist(), likes.tolist(), strict=True):
        weights[expert] = max(weights.get(expert, 0.0), min(1.0, max(0.0, like)))
    return tuple(sorted(weights.items(), key=lambda item: -item[1]))
