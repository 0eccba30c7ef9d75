"""gpt-oss: the weights are a softmax over the chosen experts only; no shared expert."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.gpt_oss import MLPBlock, mlx_topk


class StreamedGptOssBlock(MLPBlock):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        likes, ids = mlx_topk(self.router(x), k=self.num_experts_per_tok, axis=-1)
        weights = mx.softmax(likes, axis=-1, precise=True)
        rows: mx.array = self.experts(x, ids, weights)
        return (rows * mx.expand_dims(weights, axis=-1)).sum(axis=-2)


BLOCKS = ((MLPBlock, StreamedGptOssBlock),)


def probe(block: Any) -> Callable[[mx.array], mx.array]:
    return lambda x: mx.softmax(block.router(x), axis=-1, precise=True)
