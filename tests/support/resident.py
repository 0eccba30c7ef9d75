"""Checkpoints read whole: a model with its experts, and a head with its experts, for tests that need no pool."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import load_model

from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.install import expert_modules, layer_of_path
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_daemon.engine.mtp.load import build_head, first_head_layer
from mtp_daemon.engine.stream import ResidentStream
from mtp_daemon.engine.trunk import Trunk
from mtp_loader.store.head import HeadFound, find_head
from mtp_loader.store.open import open_source
from support.pool_shapes import widened

_DTYPES = {
    "uint32": mx.uint32,
    "uint8": mx.uint8,
    "float32": mx.float32,
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
}


def place_resident(head: MtpHead, source: Any) -> None:
    """The head's experts, read from `source`, stacked into the layer's own SwitchGLU."""
    place_experts(head.layers[0].mlp.switch_mlp, source, first_head_layer(source.geometry))


def place_experts(experts: Any, source: Any, layer: int) -> None:
    """All experts of `layer`, read from `source`, stacked into the SwitchGLU `experts`."""
    described = next(y for y in source.geometry.layers if y.layer == layer)
    bank = source.geometry.banks[described.bank]
    rows: dict[str, list[mx.array]] = {p.name: [] for p in bank.planes}
    for expert in range(described.experts):
        for index, data in _rows(source, layer, expert):
            plane = bank.planes[index]
            raw = mx.array(memoryview(widened(data, plane))).view(_DTYPES[plane.dtype])
            rows[plane.name].append(raw.reshape(plane.shape))
    for name in ("gate", "up", "down"):
        parts = {n.split(".")[1]: mx.stack(r) for n, r in rows.items() if n.startswith(f"{name}.")}
        setattr(experts, f"{name}_proj", _linear(parts, getattr(bank, name)))
    mx.eval(experts.parameters())


def _rows(source: Any, layer: int, expert: int) -> list[tuple[int, bytes]]:
    planes = source.geometry.banks[next(y.bank for y in source.geometry.layers if y.layer == layer)].planes
    found = []
    for extent in source.extents(layer, expert):
        fd = os.open(source.files[extent.file], os.O_RDONLY)
        data = os.pread(fd, extent.nbytes, extent.offset)
        os.close(fd)
        for index in extent.planes:
            found.append((index, data[: planes[index].source_bytes]))
            data = data[planes[index].source_bytes :]
    return found


def _linear(parts: dict[str, mx.array], kind: Any) -> Any:
    if kind.mode == "none":
        made = SwitchLinear(1, 1, 1, bias=False)
    else:
        made = QuantizedSwitchLinear(64, 1, 1, False, group_size=64, bits=4)
        made.group_size, made.bits, made.mode = kind.group_size, kind.bits, kind.mode
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def resident_head(model: Any, path: Path, head_path: Path | None = None) -> MtpHead:
    """The head found at `path` (or `head_path`) for `model`, all its experts in memory."""
    found = find_head(path, head_path)
    assert isinstance(found, HeadFound), found
    source = open_source(path, widen=True, head=head_path)
    return build_head(found, model, lambda head: place_resident(head, source))


def resident_target(path: Path, head_path: Path | None = None, hidden: Any = "post_norm") -> Target:
    """The checkpoint or packed store at `path` read whole, with its head."""
    packed = (path / "index.json").exists()
    model, _ = load_model(path, strict=False, lazy=packed)
    if packed:
        source = open_source(path, widen=True)
        for name, experts in expert_modules(model).items():
            place_experts(experts, source, layer_of_path(name))
        mx.eval(model.parameters())
    return Target(Trunk(model), ResidentStream(), resident_head(model, path, head_path), hidden=hidden)
