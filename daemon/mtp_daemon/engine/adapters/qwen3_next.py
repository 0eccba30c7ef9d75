"""Qwen3-Next and Qwen3.5 / 3.6: softmax router, shared expert behind a sigmoid gate."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.qwen3_next import Qwen3NextSparseMoeBlock


class StreamedQwen3NextBlock(Qwen3NextSparseMoeBlock):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        gates = mx.softmax(self.gate(x), axis=-1, precise=True)
        ids = mx.argpartition(gates, kth=-self.top_k, axis=-1)[..., -self.top_k :]
        weights = mx.take_along_axis(gates, ids, axis=-1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        shared: mx.array = mx.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        rows: mx.array = self.switch_mlp(x, ids, weights, (shared,))
        y: mx.array = (rows * weights[..., None]).sum(axis=-2)
        return y + shared


BLOCKS = ((Qwen3NextSparseMoeBlock, StreamedQwen3NextBlock),)


def probe(block: Any) -> Callable[[mx.array], mx.array]:
    return lambda x: mx.softmax(block.gate(x), axis=-1, precise=True)
