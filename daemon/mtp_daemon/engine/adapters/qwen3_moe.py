"""Qwen3-MoE: softmax router, no shared expert."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.qwen3_moe import Qwen3MoeSparseMoeBlock


class StreamedQwen3MoeBlock(Qwen3MoeSparseMoeBlock):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        gates = mx.softmax(self.gate(x), axis=-1, precise=True)
        ids = mx.argpartition(gates, kth=-self.top_k, axis=-1)[..., -self.top_k :]
        weights = mx.take_along_axis(gates, ids, axis=-1)
        if self.norm_topk_prob:
            weights = weights / mx.sum(weights, axis=-1, keepdims=True)
        rows: mx.array = self.switch_mlp(x, ids, weights)
        return (rows * weights[..., None]).sum(axis=-2).astype(rows.dtype)


BLOCKS = ((Qwen3MoeSparseMoeBlock, StreamedQwen3MoeBlock),)


def probe(block: Any) -> Callable[[mx.array], mx.array]:
    return lambda x: mx.softmax(block.gate(x), axis=-1, precise=True)
