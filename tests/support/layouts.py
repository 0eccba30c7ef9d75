"""The names tensors have in each layout: from mlx-lm's own to the originals' (the inverse of `sanitize`)."""

import re
from typing import Any

import mlx.core as mx

from support.quant import Weights

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_SHIFTED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)


def trunk_names(family: str, weights: Weights, layout: str, sizes: dict[str, Any]) -> Weights:
    """The model's weights under the names (and in the shapes) of `layout`."""
    if layout == "mlx":
        return weights
    if family == "gpt_oss":
        return _gpt_oss_original(weights)
    weights = _split_experts(weights, fused=layout == "fused")
    if family in ("qwen3_next", "qwen3_5_moe"):
        weights = {k: _uncentre(k, v) for k, v in weights.items()}
    if family == "qwen3_5_moe":
        weights = {_qwen3_5_name(k): v for k, v in weights.items()}
    if family == "deepseek_v3":
        weights = _join_kv_b(weights, sizes)
    return weights


def head_names(weights: Weights, experts: str, prefix: str) -> Weights:
    """A head's plain weights (stacked, norms x * w) as written: originals have zero-centred norms."""
    if experts != "stacked":
        weights = _split_experts(weights, fused=experts == "fused")
        weights = {k: v - 1 if k.endswith("norm.weight") or "pre_fc_norm" in k else v for k, v in weights.items()}
    return {prefix + k: v for k, v in weights.items()}


def _split_experts(weights: Weights, *, fused: bool) -> Weights:
    out: Weights = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(.*\.mlp)\.switch_mlp\.(\w+)\.(\w+)", name)
        if not match:
            out[name] = value
        elif not fused:
            out.update({f"{match[1]}.experts.{e}.{match[2]}.{match[3]}": value[e] for e in range(value.shape[0])})
        elif match[2] == "down_proj":
            out[f"{match[1]}.experts.down_proj"] = value
        elif match[2] == "gate_proj":
            up = weights[name.replace("gate_proj", "up_proj")]
            out[f"{match[1]}.experts.gate_up_proj"] = mx.concatenate([value, up], axis=-2)
    return out


def _uncentre(name: str, value: mx.array) -> mx.array:
    if "conv1d.weight" in name:
        return value.moveaxis(2, 1)
    return value - 1 if name.endswith(_SHIFTED) else value


def _qwen3_5_name(name: str) -> str:
    if name.startswith("language_model.model."):
        return name.replace("language_model.model.", "model.language_model.", 1)
    return name.removeprefix("language_model.")


def _join_kv_b(weights: Weights, sizes: dict[str, Any]) -> Weights:
    out = dict(weights)
    for name in [n for n in weights if n.endswith(".embed_q.weight")]:
        base = name.removesuffix("embed_q.weight")
        up = out.pop(base + "unembed_out.weight")
        joined = mx.concatenate([out.pop(name).swapaxes(-1, -2), up], axis=1)
        out[base + "kv_b_proj.weight"] = joined.reshape(-1, sizes["kv_lora_rank"])
    return out


def _gpt_oss_original(weights: Weights) -> Weights:
    """mxfp4 blocks [E, rows, groups, 16] with gate and up rows interleaved; biases likewise."""
    out: Weights = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(.*\.mlp\.experts)\.(\w+)_proj\.(\w+)", name)
        if not match:
            out[name] = value
            continue
        base, projection, part = match.groups()
        if projection == "up":
            continue
        if projection == "gate":
            up = weights[name.replace("gate_proj", "up_proj")]
            value = mx.stack([value, up], axis=2).reshape(value.shape[0], -1, *value.shape[2:])
        if part == "weight":
            value = value.view(mx.uint8).reshape(*value.shape[:2], -1, 16)
        suffix = {"weight": "_blocks", "scales": "_scales", "bias": "_bias"}[part]
        out[f"{base}.{'gate_up' if projection == 'gate' else projection}_proj{suffix}"] = value
    return out
