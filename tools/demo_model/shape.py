"""The demo model's sizes, in one place, and the config.json they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. Every linear's input is a multiple of 64, so 4-bit groups of 64 fit.

    The embedding is tied to the output layer: on a text of a million tokens the shared table
    learns faster, and it saves 0.33 MB of the 12 MB the packed store may take.
    """

    vocab: int = 2048
    hidden: int = 256
    layers: int = 8
    attention_every: int = 4  # layers 3 and 7 are full attention, the others gated delta
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_factor: float = 0.25
    rope_theta: float = 10000.0
    key_heads: int = 2
    value_heads: int = 4
    delta_dim: int = 64  # of a key head and of a value head of the gated-delta layers
    conv_kernel: int = 4
    experts: int = 32
    top_k: int = 4
    inner: int = 64  # of an expert and of the shared expert
    eps: float = 1e-6
    max_positions: int = 2048

    @property
    def key_width(self) -> int:
        return self.key_heads * self.delta_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.delta_dim

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_every == 0

    def hf_config(self, eos_id: int) -> dict[str, Any]:
        """The dictionary of config.json, with the original checkpoints' keys."""
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "eos_token_id": eos_id,
            "pad_token_id": None,
            "decoder_sparse_step": 1,
            "full_attention_interval": self.attention_every,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.inner * self.top_k,
            "linear_conv_kernel_dim": self.conv_kernel,
            "linear_key_head_dim": self.delta_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_value_head_dim": self.delta_dim,
            "max_position_embeddings": self.max_positions,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.inner,
            "norm_topk_prob": True,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "num_nextn_predict_layers": 1,
            "output_router_logits": False,
            "partial_rotary_factor": self.rotary_factor,
            "rms_norm_eps": self.eps,
            "rope_scaling": None,
            "rope_theta": self.rope_theta,
            "router_aux_loss_coef": 0.01,
            "shared_expert_intermediate_size": self.inner,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": self.vocab,
        }
