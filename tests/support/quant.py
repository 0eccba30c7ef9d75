"""Names of quantisations in tests, and how they are applied to tiny models."""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
_MODES = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
Weights = dict[str, mx.array]


def parse(quant: str | None) -> tuple[mx.Dtype, dict[str, Any] | None]:
    """The dtype and settings of a name: None (float32), "bf16", "q4g64", "mxfp4", "mixed", "q4g32/bf16" (from bf16)."""
    name, _, base = (quant or "f32").partition("/")
    if name in DTYPES:
        return DTYPES[name], None
    dtype = DTYPES[base or "f32"]
    if name == "mixed":
        return dtype, {"group_size": 32, "bits": 4, "mode": "affine"}
    if name in _MODES:
        group, bits = _MODES[name]
        return dtype, {"group_size": group, "bits": bits, "mode": name}
    match = re.fullmatch(r"q(\d)g(\d+)", name)
    if not match:
        raise ValueError(f"no such quantisation as {quant!r}")
    return dtype, {"group_size": int(match[2]), "bits": int(match[1]), "mode": "affine"}


def cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast floating parameters but those that mlx-lm keeps (`cast_predicate`)."""
    keep: Callable[[str], bool] = getattr(model, "cast_predicate", lambda _: True)
    flat = nn.utils.tree_flatten(model.parameters())
    model.load_weights([(k, v.astype(dtype) if keep(k) else v) for k, v in flat], strict=False)


def quantise_model(model: nn.Module, quant: str | None) -> dict[str, Any] | None:
    """Quantise in place as mlx-lm's converter does; returns config.json's "quantization" or None.

    "mixed" gives layer 1's experts 6 bits and layer 2's down projection 8 bits.
    """
    dtype, settings = parse(quant)
    cast(model, dtype)
    if settings is None:
        return None
    config: dict[str, Any] = dict(settings)
    predicate = getattr(model, "quant_predicate", None) or (lambda path, module: True)

    def choose(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % settings["group_size"]:
            return False
        answer: bool | dict[str, Any] = predicate(path, module)
        if quant is not None and quant.startswith("mixed"):
            answer = _mixed(path, answer)
        if isinstance(answer, dict):
            config[path] = answer
        return answer

    nn.quantize(model, **settings, class_predicate=choose)
    return config


def _mixed(path: str, answer: bool | dict[str, Any]) -> bool | dict[str, Any]:
    routed = ".switch_mlp." in path or ".mlp.experts." in path
    if routed and ".layers.1." in path:
        return {"group_size": 32, "bits": 6}
    if routed and ".layers.2." in path and path.endswith("down_proj"):
        return {"group_size": 32, "bits": 8}
    return answer


def quantise_weights(weights: Weights, quant: str | None) -> Weights:
    """Quantise every matrix (routers at 8 bits, as mlx-lm does) of a set of named weights, such as a head's."""
    dtype, settings = parse(quant)
    out: Weights = {}
    for name, value in weights.items():
        value = value.astype(dtype)
        if settings is None or value.ndim < 2:
            out[name] = value
            continue
        router = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
        chosen = {"group_size": 64, "bits": 8} if router else settings
        parts = mx.quantize(value, **chosen)
        base = name.removesuffix("weight")
        out.update({base + part: v for part, v in zip(("weight", "scales", "biases"), parts, strict=False)})
    return out
