"""Builds the head from wherever its tensors were found.

What a tensor is, its own file says (`mtp_loader.store.head`): a 4-bit trunk may have a bfloat16 head, and the reverse.
The experts are not loaded: they stream through the pool as the trunk's do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten

from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.install import install, layer_of_path
from mtp_daemon.engine.mtp.head import MtpHead, head_args
from mtp_daemon.engine.stream import ExpertStream
from mtp_loader.errors import LoaderError
from mtp_loader.store.head import HeadFound, HeadMissing, find_head, is_norm
from mtp_protocol.geometry import Geometry


@dataclass(frozen=True)
class LoadedHead:
    """`head` None: there is none, and `why` says why in one line. Otherwise `why` says where it was found."""

    head: MtpHead | None
    why: str


def load_head(model: Module, stream: ExpertStream, path: Path, head_path: Path | None = None) -> LoadedHead:
    """The head of the checkpoint or packed store at `path` (or of `head_path`) for `model`, its experts from `stream`.

    A head that is there but cannot be used is no reason not to serve: `why` names what is wrong with it.
    """
    try:
        found = find_head(path, head_path)
        if isinstance(found, HeadMissing):
            return LoadedHead(None, found.why)
        first = first_head_layer(stream.geometry)
        head = build_head(found, model, lambda h: install(h, stream, lambda p: first + layer_of_path(p)))
    except (LoaderError, RequestRefused) as error:
        return LoadedHead(None, f"the MTP head cannot be used: {error}")
    return LoadedHead(head, found.where)


def first_head_layer(geometry: Geometry) -> int:
    """The number of the head's first layer; RequestRefused where the store has no experts of a head."""
    layers = [y.layer for y in geometry.layers if y.is_head]
    if not layers:
        raise RequestRefused("the store has no experts for it")
    return min(layers)


def build_head(found: HeadFound, model: Module, place_experts: Callable[[MtpHead], object]) -> MtpHead:
    """The head with its dense tensors evaluated. `place_experts` puts experts in the place of the layer's own.

    Raises RequestRefused unless every tensor has its place and every place its tensor, in the right shape.
    """
    head = MtpHead(head_args(model))
    place_experts(head)
    _quantised_like(head, found)
    weights = _read(found)
    wanted = {k: v for k, v in _flat(head).items() if ".switch_mlp." not in k}
    if missing := sorted(wanted.keys() - weights.keys()):
        raise RequestRefused(f"it has no tensor {missing[0]} ({len(missing)} are missing)")
    if unused := sorted(weights.keys() - wanted.keys()):
        raise RequestRefused(f"its tensor {unused[0]} has no place in this family's head ({len(unused)} such)")
    for name, value in weights.items():
        if value.shape != wanted[name].shape:
            raise RequestRefused(f"its {name} has shape {value.shape}; the model asks for {wanted[name].shape}")
    head.load_weights(list(weights.items()), strict=False)
    for value in weights.values():
        mx.eval(value)
    head.eval()
    head.watch()
    return head


def _quantised_like(head: MtpHead, found: HeadFound) -> None:
    def settings(path: str, _: Module) -> bool | dict[str, Any]:
        kind = found.quantisation.get(path)
        if kind is None or kind.mode == "none":
            return False
        return {"group_size": kind.group_size, "bits": kind.bits, "mode": kind.mode}

    quantize(head, class_predicate=settings)


def _read(found: HeadFound) -> dict[str, mx.array]:
    """The dense tensors, lazily; norms shifted where the files keep them zero-centred, float16 widened to float32."""
    files: dict[Path, dict[str, mx.array]] = {}
    weights = {}
    for name, tensor in found.tensors.items():
        if tensor.file not in files:
            files[tensor.file] = mx.load(str(tensor.file))  # type: ignore[assignment]
        value = files[tensor.file][tensor.tensor]
        if found.shift_norms and is_norm(name):
            value = value + 1.0
        # Nothing of the head may drag its activations down to float16's range.
        weights[name] = value.astype(mx.float32) if value.dtype == mx.float16 else value
    return weights


def _flat(module: Module) -> dict[str, mx.array]:
    flat: Any = tree_flatten(module.parameters())  # type: ignore[no-untyped-call]
    return dict(flat)
