"""A checkpoint's MoE layers, trunk and head, packed or not, brought to one form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mtp_loader.errors import DamagedCheckpoint, NotStreamable
from mtp_loader.store.experts import EXPERT_COUNTS, ExpertLayer, layer_number, recognise
from mtp_loader.store.files import Checkpoint, is_tower
from mtp_loader.store.head import is_head_tensor
from mtp_loader.store.index import PackedIndex, PackedLayer
from mtp_loader.store.quantisation import Part, infer_experts
from mtp_loader.store.safetensors import Tensor
from mtp_protocol.geometry import Plane, Quantisation

TOP_KS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "moe_top_k")
_MAX_DEPTH = 10_000  # mlx-lm would build a module for each that a hostile config claims


@dataclass(frozen=True)
class Range:
    """A contiguous range of a file that fills `planes` in order."""

    path: Path
    offset: int
    nbytes: int
    planes: tuple[int, ...]


class Records(Protocol):
    """Where one layer's experts lie."""

    @property
    def paths(self) -> frozenset[Path]:
        """Every file a range of this layer is in."""

    @property
    def is_ranges(self) -> bool:
        """Whether `ranges` exist; otherwise the checkpoint must be packed first."""

    def ranges(self, expert: int) -> list[Range]:
        """The ranges that make up an expert, in plane order."""

    def checksum(self, expert: int) -> int | None:
        """The crc32 of an expert's bytes, where one is recorded."""


@dataclass(frozen=True)
class PlainRecords:
    """A layer of a plain checkpoint: a range a plane, neighbours in the file joined."""

    layer: ExpertLayer

    @property
    def paths(self) -> frozenset[Path]:
        """See `Records`."""
        return frozenset(t.path for p in self.layer.planes for t in p.tensors)

    @property
    def is_ranges(self) -> bool:
        """See `Records`."""
        return self.layer.is_ranges

    def ranges(self, expert: int) -> list[Range]:
        """See `Records`."""
        found: list[Range] = []
        for i, plane in enumerate(self.layer.planes):
            tensor, offset = plane.locate(expert)
            last = found[-1] if found else None
            if last and last.path == tensor.path and last.offset + last.nbytes == offset:
                found[-1] = Range(last.path, last.offset, last.nbytes + plane.nbytes, (*last.planes, i))
            else:
                found.append(Range(tensor.path, offset, plane.nbytes, (i,)))
        return found

    def checksum(self, expert: int) -> int | None:
        """A plain checkpoint records none."""
        return None


@dataclass(frozen=True)
class PackedRecords:
    """A layer of a packed store: one range an expert, its padding left out."""

    layer: PackedLayer
    path: Path
    nbytes: int
    planes: int

    @property
    def paths(self) -> frozenset[Path]:
        """See `Records`."""
        return frozenset((self.path,))

    @property
    def is_ranges(self) -> bool:
        """See `Records`."""
        return True

    def ranges(self, expert: int) -> list[Range]:
        """See `Records`."""
        offset = self.layer.offset + expert * self.layer.stride
        return [Range(self.path, offset, self.nbytes, tuple(range(self.planes)))]

    def checksum(self, expert: int) -> int | None:
        """As the packer computed it."""
        return self.layer.crc32[expert]


@dataclass(frozen=True)
class MoeLayer:
    """A MoE layer: its planes as they are on disk, the quantisation of gate, up and down, and its records."""

    layer: int
    experts: int
    top_k: int
    is_head: bool
    planes: tuple[Plane, ...]
    quantisation: tuple[Quantisation, Quantisation, Quantisation]
    records: Records


def trunk_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The language model's own tensors: no head, no vision or audio tower, no layer past the last.

    Raises NotStreamable where one of them is FP8: MLX would load its bytes as numbers without an error.
    """
    depth = depth_of(checkpoint)
    chosen = {}
    for name, tensor in checkpoint.tensors.items():
        number = layer_number(name)
        if is_head_tensor(name) or is_tower(name) or (number is not None and number >= depth):
            continue
        if tensor.is_fp8 or name.endswith("weight_scale_inv"):
            raise NotStreamable(
                f"{tensor.path.name}: tensor {name} is FP8 ({tensor.dtype}); convert the model to bf16 or to one of "
                "mlx's quantisations first"
            )
        chosen[name] = tensor
    return chosen


def depth_of(checkpoint: Checkpoint) -> int:
    """The number of decoder layers of the trunk."""
    depth = checkpoint.size("num_hidden_layers")
    if depth is None or not 0 < depth <= _MAX_DEPTH:
        raise DamagedCheckpoint(checkpoint.path / "config.json", f"has no num_hidden_layers from 1 to {_MAX_DEPTH}")
    return depth


def trunk_experts(checkpoint: Checkpoint) -> dict[int, ExpertLayer]:
    """The trunk's MoE layers; raises NotStreamable where there is none, before anything is loaded."""
    layers = recognise(trunk_tensors(checkpoint), checkpoint.size(*EXPERT_COUNTS))
    if not layers:
        kind = checkpoint.model_type or "this"
        raise NotStreamable(
            f"{checkpoint.path}: a {kind} model without routed experts (gate, up and down projections of a SwitchGLU); "
            "there is nothing to stream, so run it with mlx-lm itself"
        )
    return layers


def plain_layers(checkpoint: Checkpoint, head: Sequence[ExpertLayer]) -> list[MoeLayer]:
    """The layers of a plain checkpoint with a head's behind them, numbered N, N + 1, … after the N of the trunk."""
    top_k = checkpoint.size(*TOP_KS)
    if top_k is None or top_k < 1:
        raise DamagedCheckpoint(checkpoint.path / "config.json", f"does not say {TOP_KS[0]}")
    trunk = [plain_layer(y, n, top_k, False) for n, y in sorted(trunk_experts(checkpoint).items())]
    return trunk + [plain_layer(y, depth_of(checkpoint) + y.layer, top_k, True) for y in head]


def plain_layer(layer: ExpertLayer, number: int, top_k: int, is_head: bool) -> MoeLayer:
    """One layer of a plain checkpoint; raises DamagedCheckpoint where its shapes fit no quantisation."""
    file = str(layer.planes[0].tensors[0].path)
    planes = tuple(Plane(p.name, p.dtype, p.dtype, p.shape) for p in layer.planes)
    where = f"MTP head, layer {layer.layer}" if is_head else f"layer {number}"
    found = infer_experts([(p.name, Part(p.dtype, p.shape)) for p in planes], where, file)
    if top_k > layer.experts:
        raise DamagedCheckpoint(file, f"{where} has {layer.experts} experts, fewer than the top-{top_k} of the config")
    return MoeLayer(number, layer.experts, top_k, is_head, planes, found, PlainRecords(layer))


def packed_layers(index: PackedIndex) -> list[MoeLayer]:
    """The layers of a packed store."""
    found = []
    for y in index.layers:
        bank = index.banks[y.bank]
        records = PackedRecords(y, index.path / index.files[y.file].name, bank.nbytes, len(bank.planes))
        found.append(MoeLayer(y.layer, y.experts, y.top_k, y.is_head, bank.planes, bank.quantisation, records))
    return found


def tensors_of(layers: Mapping[int, ExpertLayer]) -> frozenset[str]:
    """The names of every tensor that belongs to a routed expert."""
    return frozenset(name for y in layers.values() for name in y.names)
