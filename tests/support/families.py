"""Configurations of tiny models, one a family: the shapes of the T-hyb, T-mtp and T-swa fixtures."""

from typing import Any

VOCAB = 512
EXPERTS = 8
TOP_K = 2

_QWEN_HYBRID: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,  # three gated-delta layers and one of attention
    "full_attention_interval": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 64,
    "moe_intermediate_size": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
}

_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **_QWEN_HYBRID,
        "mlp_only_layers": [],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
    "qwen3_5_moe": {
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            **_QWEN_HYBRID,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        }
    },
    "qwen3_moe": {
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "norm_topk_prob": True,
    },
    "glm4_moe": {
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "n_group": 2,
        "topk_group": 2,
        "n_shared_experts": 1,
        "n_routed_experts": EXPERTS,
        "routed_scaling_factor": 1.0,
        "num_experts_per_tok": TOP_K,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "use_qk_norm": True,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "partial_rotary_factor": 0.5,
    },
    "gpt_oss": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "intermediate_size": 64,
        "head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 8,
        "rope_theta": 10000,
        "rope_scaling": None,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "deepseek_v3": {
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 128,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": EXPERTS,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "qk_nope_head_dim": 32,
        "n_group": 2,
        "topk_group": 2,
        "num_experts_per_tok": TOP_K,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
    },
}

FAMILIES = tuple(_CONFIGS)
HEAD_FAMILIES = ("qwen3_next", "qwen3_5_moe")


def config_of(family: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A fresh config.json of the family; `changes` are applied where the model's sizes lie."""
    config: dict[str, Any] = {"model_type": family, "eos_token_id": 256}
    for key, value in _CONFIGS[family].items():
        config[key] = dict(value) if isinstance(value, dict) else value
    sizes_of(config).update(changes or {})
    return config


def sizes_of(config: dict[str, Any]) -> dict[str, Any]:
    """The part of the config that holds the language model's sizes."""
    sizes: dict[str, Any] = config.get("text_config", config)
    return sizes
