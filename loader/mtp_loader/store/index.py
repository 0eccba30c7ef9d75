"""The index of a packed store: what lies where, read as hostile as any other file.

`index.json` is written last into a directory that is then renamed into place, so a directory that has one is whole.
Experts lie in `experts-0000X.bin`: a layer's records follow each other at `stride` bytes, a record is the expert's
planes in the bank's order, padded to the page.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mtp_loader.errors import DamagedCheckpoint, NotStreamable
from mtp_loader.store.files import inside, read_bytes
from mtp_loader.store.planes import PLANE_NAMES
from mtp_loader.store.quantisation import Part, infer_experts
from mtp_loader.store.safetensors import parse_json
from mtp_protocol.geometry import DTYPE_BYTES, Dtype, Plane, Quantisation

INDEX = "index.json"
FORMAT = "mtpd packed store"
VERSION = 1
PAGE = 4096
MAX_DEPTH = 100_000  # decoder layers; far more than any model has


@dataclass(frozen=True)
class PackedFile:
    """A file of the store, its size and the zlib.crc32 of all of it (experts' files have one a record instead)."""

    name: str
    nbytes: int
    crc32: int | None


@dataclass(frozen=True)
class PackedBank:
    """Planes as they are on disk, and the quantisation of gate, up and down that they show."""

    planes: tuple[Plane, ...]
    quantisation: tuple[Quantisation, Quantisation, Quantisation]

    @property
    def nbytes(self) -> int:
        """Bytes of one expert, padding not counted."""
        return sum(p.source_bytes for p in self.planes)


@dataclass(frozen=True)
class PackedLayer:
    """One layer's records: expert e lies at `offset + e * stride` of `file`, an index into `PackedIndex.files`."""

    layer: int
    bank: int
    experts: int
    top_k: int
    is_head: bool
    file: int
    offset: int
    stride: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class PackedIndex:
    """A whole index. `source` is the fingerprint of the checkpoint it was packed from, `options` how.

    `depth` is the number of the trunk's decoder layers, `head_missing` why there is no MTP head (None: there is one).
    """

    path: Path
    fingerprint: str
    model_type: str
    depth: int
    source: str
    options: dict[str, Any]
    head_missing: str | None
    files: tuple[PackedFile, ...]
    banks: tuple[PackedBank, ...]
    layers: tuple[PackedLayer, ...]

    @cached_property
    def by_layer(self) -> dict[int, PackedLayer]:
        """The layers by number."""
        return {y.layer: y for y in self.layers}


def is_packed(path: Path) -> bool:
    """Whether `path` is a packed store rather than a plain checkpoint."""
    return (path / INDEX).is_file()


def read_index(path: Path) -> PackedIndex:
    """Read and check the index in `path`, and that every file it names is there with the size it should have.

    Raises DamagedCheckpoint, and NotStreamable for a store of a newer version.
    """
    file = inside(path, INDEX)
    raw = read_bytes(file, "the index")
    value = parse_json(file, raw, "the index")
    if value.get("format") != FORMAT:
        raise DamagedCheckpoint(file, f"is not the index of a packed store ({FORMAT!r})")
    if value.get("version") != VERSION:
        raise NotStreamable(f"{file}: written by another version ({value.get('version')}); pack the model again")
    index = _Fields(file).index(value, path, hashlib.sha256(raw).hexdigest()[:32])
    for entry in index.files:
        held = inside(path, entry.name)
        if not held.is_file():
            raise DamagedCheckpoint(held, f"is missing; it should have {entry.nbytes} bytes")
        size = held.stat().st_size
        if size != entry.nbytes:
            raise DamagedCheckpoint(held, f"has {size} bytes but should have {entry.nbytes}")
    return index


class _Fields:
    """Typed access to the index's JSON, with errors that name the field."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _get(self, entry: Any, key: str, kind: type) -> Any:
        value = entry.get(key) if isinstance(entry, dict) else None
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise DamagedCheckpoint(self._file, f"its field {key!r} is no {kind.__name__} as it should be")
        return value

    def _list(self, entry: Any, key: str, limit: int = 1_000_000) -> list[Any]:
        value: list[Any] = self._get(entry, key, list)
        if len(value) > limit:
            raise DamagedCheckpoint(self._file, f"its field {key!r} has {len(value)} entries")
        return value

    def index(self, value: dict[str, Any], path: Path, fingerprint: str) -> PackedIndex:
        missing = value.get("head_missing")
        index = PackedIndex(
            path=path,
            fingerprint=fingerprint,
            model_type=self._get(value, "model_type", str),
            depth=self._get(value, "depth", int),
            source=self._get(value, "source", str),
            options=self._get(value, "options", dict),
            head_missing=missing if isinstance(missing, str) else None,
            files=tuple(self._packed_file(f) for f in self._list(value, "files")),
            banks=tuple(self._bank(b) for b in self._list(value, "banks")),
            layers=tuple(self._layer(y) for y in self._list(value, "layers")),
        )
        self._check(index)
        return index

    def _packed_file(self, entry: Any) -> PackedFile:
        crc = entry.get("crc32") if isinstance(entry, dict) else None
        crc = self._get(entry, "crc32", int) if crc is not None else None
        return PackedFile(self._get(entry, "name", str), self._get(entry, "nbytes", int), crc)

    def _bank(self, entry: Any) -> PackedBank:
        planes = []
        for plane in self._list(entry, "planes", len(PLANE_NAMES)):
            name, dtype = self._get(plane, "name", str), self._get(plane, "dtype", str)
            shape = [n for n in self._list(plane, "shape", 8) if type(n) is int and n > 0]
            known = name in PLANE_NAMES and dtype in DTYPE_BYTES
            if not known or len(shape) != len(plane["shape"]):
                raise DamagedCheckpoint(self._file, f"its plane {name[:40]!r} {dtype[:40]!r} is none we know")
            planes.append(Plane(name, cast(Dtype, dtype), cast(Dtype, dtype), tuple(shape)))
        parts = [(p.name, Part(p.dtype, p.shape)) for p in planes]
        if not {"gate.weight", "up.weight", "down.weight"} <= {p.name for p in planes}:
            raise DamagedCheckpoint(self._file, "one of its banks lacks a weight")
        return PackedBank(tuple(planes), infer_experts(parts, "a bank", str(self._file)))

    def _layer(self, entry: Any) -> PackedLayer:
        crcs = self._list(entry, "crc32")
        if not all(type(c) is int and 0 <= c < 1 << 32 for c in crcs):
            raise DamagedCheckpoint(self._file, "its field 'crc32' is no list of checksums")
        numbers = {
            k: self._get(entry, k, int) for k in ("layer", "bank", "experts", "top_k", "file", "offset", "stride")
        }
        return PackedLayer(is_head=self._get(entry, "is_head", bool), crc32=tuple(crcs), **numbers)

    def _check(self, index: PackedIndex) -> None:
        """Every layer's records lie in their file, whole, aligned, and over nobody else's."""
        ends: dict[int, int] = {}
        if len(index.by_layer) != len(index.layers) or not index.layers:
            raise DamagedCheckpoint(self._file, "its layers are none, or one of them is there twice")
        if not 0 < index.depth <= MAX_DEPTH:
            raise DamagedCheckpoint(self._file, f"its depth of {index.depth} is no number of decoder layers")
        if misplaced := [y.layer for y in index.layers if y.is_head == (y.layer < index.depth) or y.layer > MAX_DEPTH]:
            raise DamagedCheckpoint(self._file, f"layer {misplaced[0]} is misplaced in a model of {index.depth} layers")
        if len({f.name for f in index.files}) != len(index.files):
            raise DamagedCheckpoint(self._file, "it names a file twice")
        for layer in sorted(index.layers, key=lambda y: (y.file, y.offset)):
            name = f"layer {layer.layer}"
            if layer.bank >= len(index.banks) or layer.file >= len(index.files):
                raise DamagedCheckpoint(self._file, f"{name} names a bank or file that is not there")
            if not layer.experts or len(layer.crc32) != layer.experts or not 0 < layer.top_k <= layer.experts:
                raise DamagedCheckpoint(self._file, f"{name} has no sensible number of experts")
            if layer.offset % PAGE or layer.stride % PAGE or layer.stride < index.banks[layer.bank].nbytes:
                raise DamagedCheckpoint(self._file, f"{name} has records of {layer.stride} bytes at {layer.offset}")
            end = layer.offset + layer.experts * layer.stride
            if layer.offset < ends.get(layer.file, 0) or end > index.files[layer.file].nbytes:
                raise DamagedCheckpoint(self._file, f"{name} overlaps another or leaves {index.files[layer.file].name}")
            ends[layer.file] = end
