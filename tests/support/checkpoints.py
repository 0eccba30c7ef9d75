"""Seeded random checkpoints of tiny models, in every layout the store reads. Built in milliseconds.

The same seed gives the same model in every layout: `layout="hf"` is the inverse of mlx-lm's `sanitize`.
"""

import importlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from support.families import EXPERTS, config_of, sizes_of
from support.layouts import head_names, trunk_names
from support.quant import Weights, quantise_model, quantise_weights
from support.tokenizer import write_tokenizer

Layout = Literal["mlx", "hf", "fused"]


@dataclass(frozen=True)
class Head:
    """Where and how an MTP head is written.

    `place`: "inside" the checkpoint's shards, a "shard" mlx-lm skips (mtp.safetensors), or a "separate" file
    (`head_file(directory)`). `experts`: "stacked" (already converted), "per_expert" or "fused" (original: norms are
    zero-centred). `quant` as for `make_checkpoint`.
    """

    place: Literal["inside", "shard", "separate"] = "inside"
    experts: Literal["stacked", "per_expert", "fused"] = "stacked"
    prefix: str = "mtp."
    quant: str | None = None


def head_file(directory: Path) -> Path:
    """Where a head with `place="separate"` is written."""
    return directory.parent / f"{directory.name}-mtp" / "head.safetensors"


def make_model(
    family: str, *, quant: str | None = None, seed: int = 0, changes: dict[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """A random mlx-lm model and its config. Every parameter differs from its default, so that none goes unnoticed."""
    config = config_of(family, changes)
    module = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(seed)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config_of(family, changes)))
    model.load_weights([(k, _lively(k, v)) for k, v in tree_flatten(model.parameters())])
    if (quantisation := quantise_model(model, quant)) is not None:
        config["quantization"] = quantisation
    return model, config


def make_head_weights(family: str, *, seed: int = 0, changes: dict[str, Any] | None = None) -> Weights:
    """A random head under its plain names, float32: stacked experts, norms in the x * w convention."""
    sizes = sizes_of(config_of(family, changes))
    name = {"qwen3_5_moe": "qwen3_5"}.get(family, family)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    arguments = getattr(module, "TextModelArgs", None) or module.ModelArgs
    layer_class = getattr(module, "DecoderLayer", None) or module.Qwen3NextDecoderLayer
    mx.random.seed(seed + 1000)
    args = arguments.from_dict({"model_type": family, **sizes})
    layer = layer_class(args, sizes["full_attention_interval"] - 1)
    width = sizes["hidden_size"]
    weights = {f"layers.0.{k}": v for k, v in tree_flatten(layer.parameters())}
    weights["fc.weight"] = mx.random.normal((width, 2 * width)) * (2 * width) ** -0.5
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        weights[f"{norm}.weight"] = mx.ones((width,))
    return {k: _lively(k, v) for k, v in weights.items()}


def make_checkpoint(
    directory: Path,
    family: str,
    *,
    quant: str | None = None,
    head: Head | None = None,
    layout: Layout = "mlx",
    seed: int = 0,
    shards: int = 1,
    changes: dict[str, Any] | None = None,
    chat_template: str | None = None,
) -> Path:
    """Write a checkpoint with config, tokenizer and weights to `directory`; returns it.

    `quant`: None (float32), "bf16", "q4g64" …, "mxfp4", "mxfp8", "nvfp4", "mixed", each with "/bf16" behind it for a
    bf16 base. `layout`: "mlx" as mlx-lm converts; "hf" the original (per-expert; gpt_oss: interleaved mxfp4 blocks);
    "fused" the original with `experts.gate_up_proj`. `changes` alters the config's sizes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    model, config = make_model(family, quant=quant, seed=seed, changes=changes)
    sizes = sizes_of(config)
    weights = trunk_names(family, dict(tree_flatten(model.parameters())), layout, sizes)
    if layout != "mlx" and family == "gpt_oss":
        config["quantization_config"] = {"quant_method": "mxfp4"}
        config.pop("quantization", None)
    if head is not None:
        sizes["num_nextn_predict_layers"] = 1
        plain = quantise_weights(make_head_weights(family, seed=seed, changes=changes), head.quant)
        written = head_names(plain, head.experts, head.prefix)
        if head.place == "inside":
            weights.update(written)
        else:
            target = directory / "mtp.safetensors" if head.place == "shard" else head_file(directory)
            target.parent.mkdir(exist_ok=True)
            mx.save_safetensors(str(target), written, metadata={"format": "mlx"})
    _write_shards(directory, weights, shards)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(directory, sizes["vocab_size"], chat_template=chat_template)
    return directory


def make_original_qwen3_next(directory: Path, *, seed: int = 0, head: Head | None = None) -> Path:
    """A checkpoint as Qwen3-Next is published, under 1 MB: raw conv1d, zero-centred norms, `mtp.*`, bf16."""
    changes = {
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": EXPERTS,
    }
    head = replace(head or Head(), experts="per_expert", quant="bf16")
    return make_checkpoint(
        directory, "qwen3_next", quant="bf16", head=head, layout="hf", seed=seed, shards=2, changes=changes
    )


def _lively(name: str, value: mx.array) -> mx.array:
    """Norms become 1 + k / 64 (exact in bf16 and under the original's shift by one), constants become random."""
    if "norm" in f".{name}".rsplit(".", 2)[1]:
        return 1 + mx.random.randint(-8, 9, value.shape).astype(mx.float32) / 64
    if value.size > 1 and bool(mx.all(value == value.reshape(-1)[0])):
        return value + mx.random.normal(value.shape) * 0.1
    return value


def _write_shards(directory: Path, weights: Weights, shards: int) -> None:
    names = sorted(weights)
    parts = [names[i::shards] for i in range(shards)]
    weight_map: dict[str, str] = {}
    for i, part in enumerate(parts):
        file = "model.safetensors" if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors"
        mx.save_safetensors(str(directory / file), {n: weights[n] for n in part}, metadata={"format": "mlx"})
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
