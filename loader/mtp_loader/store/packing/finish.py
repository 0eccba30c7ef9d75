"""The end of a pack: small files, the index, everything on the disk, and the rename that makes it a store."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtp_loader.store.checksum import checksum_of
from mtp_loader.store.files import inside
from mtp_loader.store.index import FORMAT, INDEX, VERSION, PackedFile
from mtp_loader.store.layers import depth_of
from mtp_loader.store.packing.journal import JOURNAL
from mtp_loader.store.packing.model import config_with
from mtp_loader.store.packing.prepare import Prepared

_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "LICENSE*", "NOTICE*")
_SMALL_BYTES = 64 << 20


def finish(
    prepared: Prepared, partial: Path, target: Path, files: Sequence[PackedFile], parts: Mapping[str, list[int]]
) -> int:
    """Make `partial` the store `target`; `parts` has each layer's checksums. Returns the store's size in bytes."""
    files = [*files, *_copy_small(prepared, partial)]
    checksums = {p.layer.layer: parts[f"layer {p.layer.layer}"] for p in prepared.plans}
    index = _index(prepared, files, checksums)
    (partial / INDEX).write_text(json.dumps(index) + "\n")
    for entry in partial.iterdir():
        _sync(entry)
    (partial / JOURNAL).unlink()
    _sync(partial)
    os.rename(partial, target)  # over an empty directory at most: anything else fails
    _sync(target.parent)
    return sum(f.nbytes for f in files)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_small(prepared: Prepared, partial: Path) -> list[PackedFile]:
    source = prepared.checkpoint.path
    names = {p.name for pattern in _SMALL_FILES for p in source.glob(pattern) if p.is_file()}
    names -= {"config.json", INDEX, *(n for n in names if n.endswith(".safetensors.index.json"))}
    for name in sorted(names):
        path = inside(source, name)
        if path.stat().st_size <= _SMALL_BYTES:
            shutil.copyfile(path, partial / name)
    names.add("config.json")
    experts = prepared.plans[0].quantisation[0]
    config = config_with(prepared.checkpoint.config, prepared.trunk.quantisation, experts)
    (partial / "config.json").write_text(json.dumps(config, indent=1))
    written = [partial / n for n in sorted(names) if (partial / n).is_file()]
    return [PackedFile(p.name, p.stat().st_size, checksum_of(p)) for p in written]


def _index(prepared: Prepared, files: Sequence[PackedFile], checksums: dict[int, list[int]]) -> dict[str, Any]:
    banks: list[Any] = []
    layers: list[Any] = []
    numbers = {f.name: i for i, f in enumerate(files)}
    for plan in prepared.plans:
        planes = [{"name": p.name, "dtype": p.dtype, "shape": list(p.shape)} for p in plan.planes]
        bank = {"planes": planes}
        if bank not in banks:
            banks.append(bank)
        layers.append(
            {
                "layer": plan.layer.layer,
                "bank": banks.index(bank),
                "experts": plan.layer.experts,
                "top_k": plan.layer.top_k,
                "is_head": plan.layer.is_head,
                "file": numbers[experts_name(plan.file)],
                "offset": plan.offset,
                "stride": plan.stride,
                "crc32": checksums[plan.layer.layer],
            }
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "model_type": prepared.checkpoint.model_type,
        "depth": depth_of(prepared.checkpoint),
        "source": prepared.fingerprint,
        "options": prepared.settings.plain(),
        "head_missing": prepared.head_missing,
        "files": [{"name": f.name, "nbytes": f.nbytes, "crc32": f.crc32} for f in files],
        "banks": banks,
        "layers": layers,
    }


def experts_name(number: int) -> str:
    """The name of experts file `number`."""
    return f"experts-{number + 1:05}.bin"
