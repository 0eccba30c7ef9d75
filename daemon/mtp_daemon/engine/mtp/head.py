"""The MTP head of the Qwen3-Next and Qwen3.5 families: one full-attention MoE layer behind a projection.

For position i, with token t[i+1] and the target's hidden row i, it predicts token i+2:

    x = fc(concat[norm_e(embed(t[i+1])), norm_h(hidden[i])])      embedding first
    out = norm(layer(x)),  logits = lm_head(out)

Embedding and lm_head are the target's. A chained draft feeds back `out` in the place of the hidden row, and the drafted
token. The layer is mlx-lm's own decoder layer, so its experts stream as the trunk's do.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.cache import KVCache

from mtp_daemon.engine.errors import RequestRefused


class MtpHead(Module):
    """Parameters are named as in the packed store: `fc`, `norm`, `pre_fc_norm_*`, `layers.0.…`."""

    before_experts: Callable[[mx.array], None] | None

    def __init__(self, args: Any) -> None:
        """`args`: mlx-lm's ModelArgs of qwen3_next, or TextModelArgs of qwen3_5; RequestRefused for another family."""
        super().__init__()  # type: ignore[no-untyped-call]
        layer_class = _layer_class(args)
        self.before_experts = None
        # Every layer of the head has full attention and experts, whatever the trunk's pattern is.
        pattern: dict[str, Any] = {"full_attention_interval": 1}
        if hasattr(args, "mlp_only_layers"):
            pattern |= {"mlp_only_layers": [], "decoder_sparse_step": 1}
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = RMSNorm(width, eps=eps)
        self.fc = Linear(2 * width, width, bias=False)
        self.layers = [layer_class(dataclasses.replace(args, **pattern), 0)]
        self.norm = RMSNorm(width, eps=eps)

    def watch(self) -> None:
        """Lets `before_experts` be called with the router's ids where the experts' layer is about to use them.

        Call it when the experts are what they will be (streamed or resident). The layer is told by its class.
        """
        experts = self.layers[0].mlp.switch_mlp
        object.__setattr__(experts, "__class__", _watched(type(experts), self))

    def make_cache(self) -> KVCache:
        return KVCache()

    def join(self, embedded: mx.array, hidden: mx.array) -> mx.array:
        """The layer's input [B, S, H] from the next tokens' embeddings and the hidden rows, both [B, S, H]."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        return self.fc(mx.concatenate(pair, axis=-1))

    def absorb(self, x: mx.array, cache: KVCache) -> None:
        """Rows x [1, S, H] enter the cache and nothing else is computed: with one layer, what its attention and its
        experts make of a row never reaches the cache. So priming reads no expert.
        """
        layer = self.layers[0]
        attention = layer.self_attn
        x = layer.input_layernorm(x)
        shape = (*x.shape[:2], attention.num_key_value_heads, -1)
        keys = attention.k_norm(attention.k_proj(x).reshape(shape)).transpose(0, 2, 1, 3)
        values = attention.v_proj(x).reshape(shape).transpose(0, 2, 1, 3)
        cache.update_and_fetch(attention.rope(keys, offset=cache.offset), values)

    def step(self, x: mx.array, cache: KVCache) -> mx.array:
        """`out` [B, S, H] of rows x [B, S, H]; they enter the cache. S is 1 while drafting."""
        mask = None if x.shape[1] == 1 else "causal"
        return self.norm(self.layers[0](x, mask, cache))  # type: ignore[no-any-return]


def head_args(model: Module) -> Any:
    """The arguments of `model`'s language model, as `MtpHead` takes them; RequestRefused for another family."""
    inner = model.get("language_model", model)
    args = inner.args
    _layer_class(args)
    return args


def _layer_class(args: Any) -> Any:
    if isinstance(args, qwen3_next.ModelArgs):
        return qwen3_next.Qwen3NextDecoderLayer
    if isinstance(args, qwen3_5.TextModelArgs):
        return qwen3_5.DecoderLayer
    raise RequestRefused(f"no MTP head is known for model type {getattr(args, 'model_type', '?')!r}")


def _watched(base: Any, head: MtpHead) -> Any:
    class Watched(base):  # type: ignore[misc]
        def __call__(self, x: mx.array, indices: mx.array, *args: Any) -> mx.array:
            if head.before_experts is not None:
                head.before_experts(indices)
            return super().__call__(x, indices, *args)  # type: ignore[no-any-return]

    return Watched
