"""Reads experts the plain way, to compare sources with."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtp_loader.store import ExpertSource


def expert_planes(source: ExpertSource, layer: int, expert: int) -> dict[str, bytes]:
    """An expert's planes by name, each read once; fails where a plane is filled twice or not at all."""
    found = next(y for y in source.geometry.layers if y.layer == layer)
    planes = source.geometry.banks[found.bank].planes
    rows: dict[str, bytes] = {}
    for extent in source.extents(layer, expert):
        with open(source.files[extent.file], "rb") as file:
            file.seek(extent.offset)
            data = file.read(extent.nbytes)
        assert len(data) == extent.nbytes == sum(planes[p].source_bytes for p in extent.planes)
        at = 0
        for p in extent.planes:
            assert planes[p].name not in rows
            rows[planes[p].name] = data[at : at + planes[p].source_bytes]
            at += planes[p].source_bytes
    assert list(rows) == [p.name for p in planes]
    return rows


def expert_bytes(source: ExpertSource, layer: int, expert: int) -> bytes:
    """An expert's source bytes in plane order."""
    return b"".join(expert_planes(source, layer, expert).values())


def every_expert(source: ExpertSource) -> Iterator[tuple[int, int]]:
    """Every (layer, expert) of a source."""
    for layer in source.geometry.layers:
        for expert in range(layer.experts):
            yield layer.layer, expert


def all_bytes(source: ExpertSource) -> dict[tuple[int, int], bytes]:
    """Every expert's bytes."""
    return {key: expert_bytes(source, *key) for key in every_expert(source)}


def tensor_bytes(path: Path, name: str) -> NDArray[np.uint8]:
    """A tensor's raw bytes by a reader of its own, independent of the store's."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    start, end = json.loads(raw[8 : 8 + length])[name]["data_offsets"]
    return np.frombuffer(raw[8 + length + start : 8 + length + end], np.uint8)
