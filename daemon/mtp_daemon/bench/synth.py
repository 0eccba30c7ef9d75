"""`mtp-bench synth`: a checkpoint of any size with a real shape, whose router follows a plan.

How a random model is made to route by plan: every token's embedding is a fixed random vector, every layer adds
little to it, so the router of layer l sees nearly the embedding, and its weight is the least-squares solution that
gives the planned experts of that token the largest logits (exact for up to `hidden` tokens). The output layer is made
so that token t is followed by token t + 1: greedy decoding walks the plan in order. It writes no sense, on purpose.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mtp_daemon.bench.routing_plan import Plan
from mtp_daemon.errors import UserError

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

_RESIDUAL = 0.02  # what a layer adds, relative to the embedding: small, so that the plan holds through all layers
_CHOSEN_LOGIT = 6.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a synthetic model; the defaults are the one that published streaming figures were taken on."""

    family: str = "qwen3_moe"
    layers: int = 12
    experts: int = 64
    top_k: int = 8
    hidden: int = 1024
    inner: int = 512
    tokens: int = 512
    bits: int = 4
    group: int = 64
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64

    def __post_init__(self) -> None:
        if self.family not in ("qwen3_moe", "qwen3_next"):
            raise UserError(f"no synthetic {self.family}: qwen3_moe or qwen3_next")
        if self.tokens > self.hidden:
            raise UserError(f"the plan holds for at most hidden = {self.hidden} tokens, not {self.tokens}")
        if self.bits and (self.hidden % self.group or self.inner % self.group):
            raise UserError(f"hidden and inner must be multiples of the group size {self.group}")
        if self.top_k > self.experts:
            raise UserError(f"top-{self.top_k} of {self.experts} experts")

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: three matrices with float32 scales and biases, or plain float32."""
        weights = 3 * self.hidden * self.inner
        return weights * self.bits // 8 + weights // self.group * 8 if self.bits else weights * 4

    @property
    def total_expert_bytes(self) -> int:
        return self.expert_bytes * self.experts * self.layers


def write(directory: Path, shape: Shape, plan: Plan, routing: str, seed: int, progress: Callable[[int, int], None],
          tokenizer: Callable[[Path, int], None]) -> None:  # fmt: skip
    """Write the checkpoint, one layer in memory at a time; raises UserError where `directory` exists already."""
    if directory.exists():
        raise UserError(f"{directory} exists; name a new directory")
    free = shutil.disk_usage(directory.parent).free
    if free < shape.total_expert_bytes * 1.1:
        raise UserError(f"{directory} needs {shape.total_expert_bytes / 1e9:.1f} GB, the disk has {free / 1e9:.1f}")
    building = directory.with_name(directory.name + ".part")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    mx.random.seed(seed)
    embedding = mx.random.normal((shape.tokens, shape.hidden))
    mx.save_safetensors(str(building / "model-00000.safetensors"), _ends(embedding, shape))
    inverse = _least_norm_inverse(embedding)
    for layer in range(shape.layers):
        tensors = _layer(layer, shape, inverse, plan[layer])
        mx.save_safetensors(str(building / f"model-{layer + 1:05}.safetensors"), tensors)
        del tensors
        mx.clear_cache()
        progress(layer + 1, shape.layers)
    config = _config(shape) | {"mtpd_synthetic": {"routing": routing, "seed": seed, **asdict(shape)}}
    (building / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer(building, shape.tokens)
    building.rename(directory)


def _ends(embedding: mx.array, shape: Shape) -> dict[str, mx.array]:
    """Embedding and output layer: row t of the output looks for token t - 1."""
    head = mx.concatenate([embedding[-1:], embedding[:-1]]) / shape.hidden
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": mx.ones(shape.hidden),
    }


def _layer(layer: int, shape: Shape, inverse: Matrix, plan: np.ndarray[Any, Any]) -> dict[str, mx.array]:
    prefix = f"model.layers.{layer}"
    out: dict[str, mx.array] = {
        f"{prefix}.input_layernorm.weight": mx.ones(shape.hidden),
        f"{prefix}.post_attention_layernorm.weight": mx.ones(shape.hidden),
        f"{prefix}.mlp.gate.weight": _router(shape, inverse, plan),
    }
    linear = shape.family == "qwen3_next" and (layer + 1) % 4 != 0
    out |= _gated_delta(f"{prefix}.linear_attn", shape) if linear else _attention(f"{prefix}.self_attn", shape)
    if shape.family == "qwen3_next":
        out |= _shared_expert(f"{prefix}.mlp", shape)
    sizes = {"gate_proj": (shape.inner, shape.hidden), "up_proj": (shape.inner, shape.hidden),
             "down_proj": (shape.hidden, shape.inner)}  # fmt: skip
    for name, size in sizes.items():
        out |= _quantised(f"{prefix}.mlp.switch_mlp.{name}", shape, size, small=name == "down_proj")
    mx.eval(out)
    return out


def _least_norm_inverse(embedding: mx.array) -> Matrix:
    """`[hidden, tokens]`: the pseudo-inverse of the embeddings as a router sees them, after an RMS norm."""
    seen = np.array(embedding).astype(np.float64)  # a dtype here would copy element by element
    seen /= np.sqrt((seen**2).mean(axis=1, keepdims=True))
    return seen.T @ np.linalg.inv(seen @ seen.T)


def _router(shape: Shape, inverse: Matrix, plan: np.ndarray[Any, Any]) -> mx.array:
    """`[experts, hidden]`: the least-norm weight under which each token's planned experts win, in plan order."""
    wanted = np.zeros((shape.tokens, shape.experts))
    ranks = _CHOSEN_LOGIT + np.linspace(1.0, 0.0, shape.top_k)
    np.put_along_axis(wanted, plan[: shape.tokens], np.broadcast_to(ranks, (shape.tokens, shape.top_k)), axis=1)
    return mx.array((inverse @ wanted).T.astype(np.float32))


def _random(rows: int, columns: int, gain: float = 1.0) -> mx.array:
    values: mx.array = mx.random.normal((rows, columns)) * (gain / columns**0.5)
    return values


def _attention(prefix: str, shape: Shape) -> dict[str, mx.array]:
    # Qwen3-Next's attention has an output gate: its query projection is twice as wide.
    queries = shape.heads * shape.head_dim * (2 if shape.family == "qwen3_next" else 1)
    return {
        f"{prefix}.q_proj.weight": _random(queries, shape.hidden),
        f"{prefix}.k_proj.weight": _random(shape.kv_heads * shape.head_dim, shape.hidden),
        f"{prefix}.v_proj.weight": _random(shape.kv_heads * shape.head_dim, shape.hidden),
        f"{prefix}.o_proj.weight": _random(shape.hidden, shape.heads * shape.head_dim, _RESIDUAL),
        f"{prefix}.q_norm.weight": mx.ones(shape.head_dim),
        f"{prefix}.k_norm.weight": mx.ones(shape.head_dim),
    }


def _gated_delta(prefix: str, shape: Shape) -> dict[str, mx.array]:
    width = shape.heads * shape.head_dim
    return {
        f"{prefix}.in_proj_qkvz.weight": _random(4 * width, shape.hidden),
        f"{prefix}.in_proj_ba.weight": _random(2 * shape.heads, shape.hidden),
        f"{prefix}.conv1d.weight": mx.random.normal((3 * width, 4, 1)) * 0.5,
        f"{prefix}.dt_bias": mx.ones(shape.heads),
        f"{prefix}.A_log": mx.log(mx.random.uniform(1, 16, (shape.heads,))),
        f"{prefix}.norm.weight": mx.ones(shape.head_dim),
        f"{prefix}.out_proj.weight": _random(shape.hidden, width, _RESIDUAL),
    }


def _shared_expert(prefix: str, shape: Shape) -> dict[str, mx.array]:
    return {
        f"{prefix}.shared_expert.gate_proj.weight": _random(shape.inner, shape.hidden),
        f"{prefix}.shared_expert.up_proj.weight": _random(shape.inner, shape.hidden),
        f"{prefix}.shared_expert.down_proj.weight": _random(shape.hidden, shape.inner, _RESIDUAL),
        f"{prefix}.shared_expert_gate.weight": _random(1, shape.hidden),
    }


def _quantised(path: str, shape: Shape, size: tuple[int, int], small: bool) -> dict[str, mx.array]:
    rows, columns = size
    weight = mx.random.normal((shape.experts, rows, columns)) * ((_RESIDUAL if small else 1.0) / columns**0.5)
    if not shape.bits:
        return {f"{path}.weight": weight}
    packed, scales, biases = mx.quantize(weight, group_size=shape.group, bits=shape.bits)
    return {f"{path}.weight": packed, f"{path}.scales": scales, f"{path}.biases": biases}


def _config(shape: Shape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": shape.family, "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "intermediate_size": shape.inner, "moe_intermediate_size": shape.inner, "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "rms_norm_eps": 1e-6, "vocab_size": shape.tokens, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
    }  # fmt: skip
    if shape.family == "qwen3_next":
        config |= {
            "linear_num_value_heads": shape.heads, "linear_num_key_heads": shape.heads,
            "linear_key_head_dim": shape.head_dim, "linear_value_head_dim": shape.head_dim,
            "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": shape.inner,
            "partial_rotary_factor": 0.25, "full_attention_interval": 4,
        }  # fmt: skip
    if shape.bits:
        config["quantization"] = {"group_size": shape.group, "bits": shape.bits, "mode": "affine"}
    return config
