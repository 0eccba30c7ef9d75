"""The layer that takes SwitchGLU's place: the same rows, from experts that stream through the pool."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module

from mtp_daemon.engine.hints import Lookahead
from mtp_daemon.engine.stream import ExpertStream
from mtp_daemon.engine.waves import gather_in_waves


class StreamedSwitchGLU(Module):
    """`[..., H]` and router ids `[..., K]` to `[..., K, H]`. Holds no weights: its experts lie in the pool."""

    def __init__(self, stream: ExpertStream, layer: int, activation: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.activation: Any
        self.stream = stream
        self.layer = layer
        self.bank = stream.residency.bank_of[layer]
        stream.residency.in_use.add(layer)
        # Past Module's own attributes, which are looked up the slow way; an activation has no parameters.
        object.__setattr__(self, "activation", activation)
        self.lookahead: Lookahead | None = None

    def __call__(
        self, x: mx.array, indices: mx.array, weights: mx.array | None = None, beside: Sequence[mx.array] = ()
    ) -> mx.array:
        """`weights` `[..., K]` are the router's, for the report; `beside` is computed while experts are read."""
        stream, layer = self.stream, self.layer
        # Taken in any case: a norm that kept it would hold a prompt's rows until the next forward.
        residual = None if self.lookahead is None else self.lookahead.take_residual()
        if stream.dry:
            return mx.zeros((*indices.shape, x.shape[-1]), x.dtype)
        if (table := stream.device_table(layer)) is not None:
            y = stream.planes[self.bank].gather(x, table[indices], self.activation)
            stream.built(layer, indices, weights, y, None)
            return y
        guesses = [] if self.lookahead is None or residual is None else self.lookahead.guess(residual, beside)
        ids = stream.host_ids(indices, (*beside, *guesses))
        slots = stream.residency.table(layer).take(ids)
        missed = 0
        if slots.min() < 0:
            tell, guesses = partial(self._tell, guesses), []
            y, missed = gather_in_waves(stream, layer, self.activation, x, ids, tell)
        else:
            stream.residency.read(layer, slots)
            if stream.verifier is not None:
                stream.verifier.check(layer, ids, slots, stream.stats)
            y = stream.planes[self.bank].gather(x, mx.array(slots.astype(np.uint32)), self.activation)
            # Computed while Python builds what follows up to the next host read.
            mx.async_eval(y)  # type: ignore[no-untyped-call]
        stream.built(layer, ids, weights, y, missed)
        self._tell(guesses)
        return y

    def _tell(self, guesses: Sequence[mx.array]) -> None:
        if guesses and self.lookahead is not None:
            self.lookahead.tell(guesses)
