"""The judge: a model with every expert resident, run by mlx-lm's own code."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear
from mlx_lm.utils import _get_classes, load_model, load_tokenizer

from mtp_daemon.errors import UserError
from mtp_loader.store import ExpertSource, open_source
from mtp_protocol.geometry import PROJECTIONS, Bank, Layer, Quantisation

_LAYER = re.compile(r"layers\.(\d+)\.")


def load_resident(path: Path) -> tuple[Any, Any]:
    """`(model, tokenizer)` of an mlx-lm checkpoint or a packed store, every weight evaluated."""
    source = open_source(path, widen=False)
    model: Any = load_model(path, lazy=True, strict=not source.geometry.packed, get_model_classes=_headless)[0]
    if source.geometry.packed:
        _put_experts_back(model, source)
    mx.eval(model.parameters())
    return model, load_tokenizer(path)


def _headless(config: dict[str, Any]) -> tuple[type[Any], Any]:
    """mlx-lm's own classes, deaf to the MTP head's tensors: they have no place for them and would refuse."""
    model_class, arguments = _get_classes(config)

    class Headless(model_class):  # type: ignore[misc, valid-type]
        def load_weights(self, weights: list[tuple[str, mx.array]], strict: bool = True) -> Any:
            return super().load_weights([(k, v) for k, v in weights if "mtp" not in k.split(".")], strict=strict)

    return Headless, arguments


def _put_experts_back(model: Any, source: ExpertSource) -> None:
    switches: dict[int, SwitchGLU] = {}
    modules: list[tuple[str, Any]] = model.named_modules()
    for name, module in modules:
        if isinstance(module, SwitchGLU):
            match = _LAYER.search(name)
            if match is None:
                raise UserError(f"{name} belongs to no layer; this model cannot be put together again")
            switches[int(match[1])] = module
    for layer in source.geometry.layers:
        if not layer.is_head:
            _fill(switches[layer.layer], source, layer)


def _fill(switch: SwitchGLU, source: ExpertSource, layer: Layer) -> None:
    bank = source.geometry.banks[layer.bank]
    tensors = _stacked(source, layer, bank)
    for projection in PROJECTIONS:
        how: Quantisation = getattr(bank, projection)
        parts = {n.partition(".")[2]: a for n, a in tensors.items() if n.startswith(projection + ".")}
        old = switch[f"{projection}_proj"]
        new = _projection(old, how, layer.experts, "bias" in parts)
        for name, array in parts.items():
            setattr(new, name, array)
        switch[f"{projection}_proj"] = new


def _projection(old: Any, how: Quantisation, experts: int, bias: bool) -> Any:
    if how.mode == "none":
        return SwitchLinear(old.input_dims, old.output_dims, experts, bias=bias)
    return QuantizedSwitchLinear(
        old.input_dims, old.output_dims, experts, bias, how.group_size, how.bits, mode=how.mode
    )


def _stacked(source: ExpertSource, layer: Layer, bank: Bank) -> dict[str, mx.array]:
    """Every plane of one layer as an array `[experts, *row]`."""
    rows: list[list[bytes]] = [[] for _ in bank.planes]
    for expert in range(layer.experts):
        for extent in source.extents(layer.layer, expert):
            with source.files[extent.file].open("rb") as file:
                file.seek(extent.offset)
                for number in extent.planes:
                    rows[number].append(file.read(bank.planes[number].source_bytes))
    stacked = {}
    for plane, parts in zip(bank.planes, rows, strict=True):
        raw = "uint16" if plane.source_dtype == "bfloat16" else plane.source_dtype
        array = mx.array(np.frombuffer(b"".join(parts), dtype=raw).reshape(len(parts), *plane.shape))
        stacked[plane.name] = array.view(mx.bfloat16) if plane.source_dtype == "bfloat16" else array
    return stacked
