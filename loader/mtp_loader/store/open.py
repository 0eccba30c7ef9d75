"""`open_source`: one view of experts on disk, packed or not, the MTP head's among them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mtp_loader.errors import DamagedCheckpoint, NotStreamable
from mtp_loader.store.files import (
    Checkpoint,
    model_sizes,
    read_bytes,
    read_checkpoint,
    read_json,
    sidecar_headers,
    whole_number,
)
from mtp_loader.store.fingerprint import fingerprint
from mtp_loader.store.head import HeadFound, head_of, head_of_sidecar
from mtp_loader.store.index import INDEX, PAGE, PackedIndex, is_packed, read_index
from mtp_loader.store.layers import TOP_KS, MoeLayer, packed_layers, plain_layer, plain_layers
from mtp_loader.store.source import Extent
from mtp_protocol.geometry import PROJECTIONS, Bank, Geometry, Layer, Plane


@dataclass(frozen=True)
class Source:
    """An `ExpertSource` over layers of either kind."""

    geometry: Geometry
    alignment: int
    moe_layers: tuple[MoeLayer, ...]

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Every file that extents point into."""
        return tuple(sorted(frozenset[Path]().union(*(y.records.paths for y in self.moe_layers))))

    @cached_property
    def _numbers(self) -> dict[Path, int]:
        return {path: i for i, path in enumerate(self.files)}

    @cached_property
    def _by_number(self) -> dict[int, MoeLayer]:
        return {y.layer: y for y in self.moe_layers}

    def _layer(self, layer: int, expert: int) -> MoeLayer:
        found = self._by_number.get(layer)
        if found is None or not 0 <= expert < found.experts:
            raise KeyError(f"no expert {expert} in layer {layer}")
        return found

    def extents(self, layer: int, expert: int) -> tuple[Extent, ...]:
        """See `ExpertSource.extents`."""
        ranges = self._layer(layer, expert).records.ranges(expert)
        return tuple(Extent(self._numbers[r.path], r.offset, r.nbytes, r.planes) for r in ranges)

    def checksum(self, layer: int, expert: int) -> int | None:
        """See `ExpertSource.checksum`."""
        return self._layer(layer, expert).records.checksum(expert)


def open_source(path: Path, *, widen: bool, head: Path | None = None, with_head: bool = True) -> Source:
    """The experts of the packed store or plain checkpoint at `path`.

    `widen`: unquantised bf16 and f16 experts get float32 planes, which MLX's CPU backend needs. `head`: an MTP head's
    own file or directory, instead of one beside the checkpoint. `with_head=False` leaves a head out, even a broken
    one. Raises NoSuchModel, NotStreamable or DamagedCheckpoint; no expert is read.
    """
    if is_packed(path):
        return _open_packed(read_index(path), widen, head, with_head)
    if next(path.glob("experts-*.bin"), None) is not None:
        raise DamagedCheckpoint(path / INDEX, "is missing, and with it what lies where: pack the model again")
    return _open_plain(read_checkpoint(path), widen, head, with_head)


def _open_plain(checkpoint: Checkpoint, widen: bool, head: Path | None, with_head: bool) -> Source:
    found = head_of(checkpoint, head) if with_head else None
    layers = plain_layers(checkpoint, found.experts if isinstance(found, HeadFound) else ())
    for layer in layers:
        _require_ranges(layer)
    return _source(layers, source_fingerprint(checkpoint, head if with_head else None), checkpoint.model_type, widen, 1)


def _open_packed(index: PackedIndex, widen: bool, head: Path | None, with_head: bool) -> Source:
    _check_config(index)
    layers = [y for y in packed_layers(index) if with_head or not y.is_head]
    if head is None or not with_head:
        return _source(layers, index.fingerprint, index.model_type, widen, PAGE)
    trunk = [y for y in layers if not y.is_head]
    found = head_of_sidecar(head, None)
    experts = found.experts if isinstance(found, HeadFound) else ()
    layers = trunk + [plain_layer(y, index.depth + y.layer, trunk[-1].top_k, True) for y in experts]
    for layer in layers:
        _require_ranges(layer)
    joined = fingerprint(index.fingerprint.encode(), sidecar_headers(head))
    return _source(layers, joined, index.model_type, widen, 1)


def source_fingerprint(checkpoint: Checkpoint, head: Path | None) -> str:
    """The fingerprint of a plain checkpoint, with a head's own files where one is given."""
    config = read_bytes(checkpoint.path / "config.json", "the config")
    headers = (*checkpoint.headers, *checkpoint.others, *(sidecar_headers(head) if head else ()))
    return fingerprint(config, headers)


def _require_ranges(layer: MoeLayer) -> None:
    if not layer.records.is_ranges:
        raise NotStreamable(
            f"layer {layer.layer}: gate and up rows are interleaved in the files, as gpt_oss is published; "
            "run `mtp-loader pack` first"
        )


def _check_config(index: PackedIndex) -> None:
    """The engine builds and routes by the config: an index of another top-k would make slots and waits too few."""
    file = index.path / "config.json"
    config = read_json(file, "the config")
    sizes = model_sizes(config)
    said = whole_number(sizes, *TOP_KS)
    for layer in index.layers:
        if said is not None and layer.top_k != said:
            raise DamagedCheckpoint(
                index.path / INDEX, f"layer {layer.layer} has top-{layer.top_k}, but config.json has top-{said}"
            )
    depth, kind = whole_number(sizes, "num_hidden_layers"), config.get("model_type", "")
    if depth is not None and depth != index.depth:
        raise DamagedCheckpoint(index.path / INDEX, f"has a depth of {index.depth}, but config.json has {depth} layers")
    if kind != index.model_type:
        raise DamagedCheckpoint(
            index.path / INDEX, f"is of a {index.model_type[:40]!r} model, but config.json says {str(kind)[:40]!r}"
        )


def _source(found: Sequence[MoeLayer], mark: str, model_type: str, widen: bool, alignment: int) -> Source:
    banks: list[Bank] = []
    layers: list[Layer] = []
    for layer in found:
        planes = tuple(_pool_plane(p, layer, widen) for p in layer.planes)
        gate, up, down = layer.quantisation
        match = next((b for b in banks if (b.planes, b.gate, b.up, b.down) == (planes, gate, up, down)), None)
        if match is None:
            match = Bank(len(banks), planes, gate, up, down, ())
            banks.append(match)
        banks[match.bank] = replace(match, layers=(*match.layers, layer.layer))
        layers.append(Layer(layer.layer, match.bank, layer.experts, layer.top_k, layer.is_head))
    reads = max(len(y.records.ranges(0)) for y in found)
    geometry = Geometry(mark, model_type, alignment > 1, reads, tuple(banks), tuple(layers))
    return Source(geometry, alignment, tuple(found))


def _pool_plane(plane: Plane, layer: MoeLayer, widen: bool) -> Plane:
    """The plane as the pool holds it. Only experts in plain floating point are widened: a quantised one's scales and
    bias keep the type in which MLX would compute with them.
    """
    mode = layer.quantisation[PROJECTIONS.index(plane.name.split(".")[0])].mode
    if widen and mode == "none" and plane.source_dtype in ("bfloat16", "float16"):
        return replace(plane, dtype="float32")
    return plane
