"""Where each plane of each expert lies in a plain checkpoint, whatever the layout.

Layouts told apart by the tensors' names alone:

- stacked: `….{gate,up,down}_proj.{weight,scales,…}` with the experts as first axis (mlx-lm's SwitchGLU);
- per expert: `….experts.{e}.{gate,up,down}_proj.weight`, or Mixtral's w1/w3/w2;
- fused: `….experts.gate_up_proj` `[E, 2I, H]` (gate's rows first) and `….experts.down_proj` `[E, H, I]`;
- interleaved: gpt_oss's `….experts.gate_up_proj_blocks` `[E, 2I, G, 16]`, gate and up rows taking turns.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from mtp_loader.errors import DamagedCheckpoint, NotStreamable
from mtp_loader.store.planes import PLANE_NAMES, PlaneSource, make_plane
from mtp_loader.store.safetensors import Tensor
from mtp_protocol.geometry import Dtype

# What configs call the number of experts a layer has.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
Form = Literal["stacked", "per_expert", "fused", "interleaved"]
_ALIASES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_PART = r"(weight|scales|biases|bias|global_scale)"
_EACH = re.compile(rf"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.{_PART}")
_STACKED = re.compile(rf"(.+)\.(gate_proj|up_proj|down_proj)\.{_PART}")
_FUSED = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")
_BLOCKS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)_(blocks|scales|bias)")


@dataclass(frozen=True)
class ExpertLayer:
    """One MoE layer of a plain checkpoint: its planes in the bank's order. `names` are the tensors it uses."""

    layer: int
    experts: int
    planes: tuple[PlaneSource, ...]
    names: frozenset[str]
    form: Form

    @property
    def is_ranges(self) -> bool:
        """Whether plain ranges of files hold every row; otherwise the checkpoint must be packed first."""
        return not any(p.interleaved for p in self.planes)


def recognise(tensors: Mapping[str, Tensor], experts: int | None) -> dict[int, ExpertLayer]:
    """The MoE layers among `tensors`, by layer number; `experts` is the number the config declares, if it does.

    Raises DamagedCheckpoint for a missing expert or a shape that contradicts the others, NotStreamable for forms that
    cannot be streamed.
    """
    groups: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number = layer_number(name)
        if number is not None and (module := expert_module(name, tensor.shape)):
            groups.setdefault((number, module), {})[name] = tensor
    layers: dict[int, ExpertLayer] = {}
    for (layer, module), group in sorted(groups.items()):
        if layer in layers:
            raise NotStreamable(f"layer {layer} has two sets of experts, the second in {module}; none is supported")
        layers[layer] = _layer(layer, module, group, experts)
    return layers


def layer_number(name: str) -> int | None:
    """The decoder layer a tensor's name speaks of, None for one outside the layers."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def expert_module(name: str, shape: tuple[int, ...]) -> str | None:
    """The path of the block of experts a tensor belongs to, None for a dense tensor."""
    if match := _EACH.fullmatch(name):
        return match[1]
    if (match := _BLOCKS.fullmatch(name)) and len(shape) >= 2:
        return match[1]
    if (match := _FUSED.fullmatch(name)) and len(shape) == 3:
        return match[1]
    if match := _STACKED.fullmatch(name):
        least = {"weight": 3, "scales": 3, "biases": 3, "bias": 2, "global_scale": 1}[match[3]]
        return match[1] if len(shape) == least else None
    return None


def _layer(layer: int, module: str, group: dict[str, Tensor], declared: int | None) -> ExpertLayer:
    names = frozenset(group)
    planes: list[PlaneSource]
    form: Form
    if any(_EACH.fullmatch(n) for n in names):
        planes, form = _per_expert(layer, group, declared), "per_expert"
    elif any(_BLOCKS.fullmatch(n) for n in names):
        planes, form = _interleaved(layer, module, group), "interleaved"
    elif any(_FUSED.fullmatch(n) for n in names):
        planes, form = _fused(layer, module, group), "fused"
    else:
        planes, form = _stacked(group), "stacked"
    planes.sort(key=lambda p: PLANE_NAMES.index(p.name))
    missing = {"gate.weight", "up.weight", "down.weight"} - {p.name for p in planes}
    if missing:
        raise NotStreamable(
            f"layer {layer}: {module} has no {min(missing)}: its experts are not gated (SwitchGLU), or a tensor is gone"
        )
    counts = {p.experts for p in planes}
    count = counts.pop()
    if counts or (declared is not None and count != declared):
        first = planes[0].tensors[0]
        wanted = declared if not counts else "one number in all its tensors"
        raise DamagedCheckpoint(first.path, f"layer {layer} ({module}) has {count} experts, not {wanted}")
    return ExpertLayer(layer, count, tuple(planes), names, form)


def _stacked(group: dict[str, Tensor]) -> list[PlaneSource]:
    planes = []
    for name, tensor in group.items():
        match = _STACKED.fullmatch(name)
        assert match  # expert_module let nothing else into a group without per-expert, block or fused tensors
        plane = f"{_ALIASES[match[2]]}.{match[3]}"
        planes.append(make_plane(plane, [tensor], tensor.shape[1:], tensor.shape[0]))
    return planes


def _per_expert(layer: int, group: dict[str, Tensor], declared: int | None) -> list[PlaneSource]:
    table: dict[str, dict[int, Tensor]] = {}
    for name, tensor in group.items():
        match = _EACH.fullmatch(name)
        if match is None:
            raise NotStreamable(f"layer {layer} mixes layouts of experts: {name} beside per-expert tensors")
        table.setdefault(f"{_ALIASES[match[3]]}.{match[4]}", {})[int(match[2])] = tensor
    known = {e for rows in table.values() for e in rows}
    count = declared if declared is not None else max(known) + 1
    if extra := sorted(e for e in known if e >= count):
        raise DamagedCheckpoint(
            _any(group).path, f"layer {layer} has an expert {extra[0]}, but only {count} are declared"
        )
    planes = []
    for plane, rows in table.items():
        if len(rows) != count:
            gone = next(e for e in range(count) if e not in rows)
            raise DamagedCheckpoint(_any(group).path.parent, f"layer {layer}, expert {gone}: its {plane} is missing")
        planes.append(make_plane(plane, [rows[e] for e in range(count)], rows[0].shape, count))
    return planes


def _fused(layer: int, module: str, group: dict[str, Tensor]) -> list[PlaneSource]:
    by_part = {n.rsplit(".", 1)[1]: t for n, t in group.items()}
    both, down = by_part.get("gate_up_proj"), by_part.get("down_proj")
    if both is None or down is None or len(group) != 2:
        raise DamagedCheckpoint(_any(group).path, f"layer {layer}: {module} needs exactly gate_up_proj and down_proj")
    count, rows, width = both.shape
    if rows % 2 or down.shape != (count, width, rows // 2):
        raise NotStreamable(
            f"layer {layer}: {module}.gate_up_proj {list(both.shape)} and down_proj {list(down.shape)} are not "
            "[experts, 2 x inner, hidden] and [experts, hidden, inner]"
        )
    half = (rows // 2, width)
    return [
        make_plane("gate.weight", [both], half, count, part=0, parts=2),
        make_plane("up.weight", [both], half, count, part=1, parts=2),
        make_plane("down.weight", [down], down.shape[1:], count),
    ]


def _interleaved(layer: int, module: str, group: dict[str, Tensor]) -> list[PlaneSource]:
    planes = []
    for name, tensor in group.items():
        match = _BLOCKS.fullmatch(name)
        if match is None:
            raise NotStreamable(f"layer {layer} mixes layouts of experts: {name} beside {module}.*_blocks")
        part = {"blocks": "weight", "scales": "scales", "bias": "bias"}[match[3]]
        count, rows, rest = tensor.shape[0], tensor.shape[1], tensor.shape[2:]
        if match[3] == "blocks":
            if tensor.dtype != "U8" or len(rest) != 2 or rest[1] != 16:
                raise DamagedCheckpoint(tensor.path, f"tensor {name} {list(tensor.shape)} holds no blocks of 16 bytes")
            rest = (prod(rest) // 4,)
        dtype: Dtype | None = "uint32" if part == "weight" else None
        if match[2] == "down_proj":
            planes.append(make_plane(f"down.{part}", [tensor], (rows, *rest), count, dtype=dtype))
            continue
        for i, projection in enumerate(("gate", "up")):
            plane, shape = f"{projection}.{part}", (rows // 2, *rest)
            cut = make_plane(plane, [tensor], shape, count, part=i, parts=2, interleaved=True, dtype=dtype)
            planes.append(cut)
    return planes


def _any(group: Mapping[str, Tensor]) -> Tensor:
    return next(iter(group.values()))
