"""GLM-4.5 and DeepSeek-V3: a gate that gives ids and weights, shared experts added as they are."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.deepseek_v3 import DeepseekV3MoE
from mlx_lm.models.glm4_moe import MoE as Glm4MoE


class _Streamed:
    """The call that both blocks share; the names of their parts are the same."""

    gate: Any
    config: Any
    shared_experts: Any
    switch_mlp: Any

    def __call__(self, x: mx.array) -> mx.array:
        ids, weights = self.gate(x)
        shared = () if self.config.n_shared_experts is None else (self.shared_experts(x),)
        rows: mx.array = self.switch_mlp(x, ids, weights, shared)
        y: mx.array = (rows * weights[..., None]).sum(axis=-2).astype(rows.dtype)
        return y + shared[0] if shared else y


class StreamedGlm4MoE(_Streamed, Glm4MoE):  # type: ignore[misc]
    pass


class StreamedDeepseekV3MoE(_Streamed, DeepseekV3MoE):  # type: ignore[misc]
    pass


BLOCKS = ((Glm4MoE, StreamedGlm4MoE), (DeepseekV3MoE, StreamedDeepseekV3MoE))


def probe(block: Any) -> Callable[[mx.array], mx.array]:
    """What decides is sigmoid plus the correction bias; groups are not looked at: a guess may miss."""
    gate = block.gate
    return lambda x: mx.sigmoid((x @ gate.weight.T).astype(mx.float32)) + gate.e_score_correction_bias
