"""Putting streamed experts in the place of a module's own."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear

from mtp_daemon.engine.adapters import Probe, adapt
from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.hints import Lookahead, Norm
from mtp_daemon.engine.stream import ExpertStream
from mtp_daemon.engine.streamed import StreamedSwitchGLU

NORM = "post_attention_layernorm"  # mlx-lm's name, in every adapted family, for the norm before the MoE block


@dataclass(frozen=True)
class Installed:
    """`layers` stream; `unadapted` names the block classes without an adapter: no overlap, no hints for them."""

    layers: tuple[StreamedSwitchGLU, ...]
    unadapted: tuple[str, ...]


def layer_of_path(path: str) -> int:
    """The decoder layer's number in a module's path: `model.layers.3.mlp.switch_mlp` is of layer 3.

    Raises RequestRefused for a path without one.
    """
    parts = path.split(".")
    for before, part in pairwise(parts):
        if before == "layers" and part.isdigit():
            return int(part)
    raise RequestRefused(f"experts at {path!r} belong to no decoder layer")


def expert_modules(module: Any) -> dict[str, SwitchGLU]:
    """Every SwitchGLU by its path, in order. Raises RequestRefused for experts that are kept in another way."""
    found = {}
    for path, child in module.named_modules():
        if type(child) is SwitchGLU:
            found[path] = child
    for path, child in module.named_modules():
        if isinstance(child, SwitchLinear | QuantizedSwitchLinear | SwitchGLU):
            owner = path if type(child) is SwitchGLU else path.rpartition(".")[0]
            if owner not in found:
                raise RequestRefused(
                    f"experts at {path!r} are a {type(child).__name__} outside SwitchGLU: not streamed"
                )
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def install(module: Any, stream: ExpertStream, layer_of: Callable[[str], int] = layer_of_path) -> Installed:
    """Replace every SwitchGLU of `module` (trunk or head) by one that streams; nothing of theirs is evaluated.

    `layer_of` gives a SwitchGLU's layer number in the geometry from its path. Raises RequestRefused where the
    geometry's experts are not the module's.
    """
    streamed: list[StreamedSwitchGLU] = []
    seen: list[tuple[Norm, Probe] | None] = []
    unadapted: list[str] = []
    for path, experts in expert_modules(module).items():
        layer = layer_of(path)
        _check_shapes(stream, layer, path, experts)
        block_path, _, name = path.rpartition(".")
        block = _at(module, block_path)
        setattr(block, name, StreamedSwitchGLU(stream, layer, experts.activation))
        streamed.append(block[name])
        gate = adapt(block)
        seen.append(None if gate is None else _norm_and_probe(module, block_path, gate))
        if gate is None and type(block).__name__ not in unadapted:
            unadapted.append(type(block).__name__)
    for i, layer_module in enumerate(streamed):
        following = range(i + 1, min(len(streamed), i + 1 + stream.settings.hints_ahead))
        known = [(streamed[j].layer, to[1]) for j in following if (to := seen[j]) is not None]
        if known and (own := seen[i]) is not None:
            layer_module.lookahead = Lookahead(stream, own[0], known)
    return Installed(tuple(streamed), tuple(unadapted))


def _norm_and_probe(module: Any, block_path: str, gate: Probe) -> tuple[Norm, Probe] | None:
    """The norm before an adapted block, and the block's router on a residual; None where the layer has no such norm."""
    decoder_layer = _at(module, block_path.rpartition(".")[0])
    if NORM not in decoder_layer:
        return None
    norm = Norm(decoder_layer[NORM])
    return norm, lambda residual: gate(norm.apply(residual))


def _check_shapes(stream: ExpertStream, layer: int, path: str, experts: Any) -> None:
    bank = stream.residency.bank_of.get(layer)
    if bank is None:
        raise RequestRefused(f"the store has no experts for layer {layer} ({path})")
    stored, wanted = len(stream.residency.table(layer)), experts.gate_proj.num_experts
    if stored != wanted:
        raise RequestRefused(f"layer {layer} has {stored} experts in the store and {wanted} in the model's config")
    for plane in stream.geometry.banks[bank].planes:
        name, component = plane.name.split(".")
        want = getattr(experts, f"{name}_proj").output_dims
        if component == "weight" and plane.shape[0] != want:
            raise RequestRefused(f"layer {layer}: {plane.name} has {plane.shape[0]} rows in the store, not {want}")


def _at(module: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        module = module[int(part)] if isinstance(module, list) else module[part]
    return module


def _natural(path: str) -> tuple[tuple[int, str], ...]:
    """Layer 10 after layer 9."""
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in path.split("."))
