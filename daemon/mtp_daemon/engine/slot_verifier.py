"""Debugging: is a slot's content, at the moment it is used, what the store says the expert is?"""

import mmap
import os
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtp_daemon.engine.errors import EngineBug
from mtp_daemon.engine.stream_stats import StreamStats
from mtp_loader.store.source import ExpertSource
from mtp_protocol.geometry import Plane, PoolLayout


class SlotVerifier:
    """Hashes slots through a mapping of its own. `stats.slots_verified` says how many, so that silence means something.

    Where the store has no checksum (a plain checkpoint), the expert's bytes on disk are hashed, once an expert.
    """

    def __init__(self, region_fd: int, layout: PoolLayout, source: ExpertSource) -> None:
        """Raises OSError from mapping the region."""
        self._memory = mmap.mmap(region_fd, layout.nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self._layout = layout
        self._source = source
        self._bank_of = {y.layer: y.bank for y in source.geometry.layers}
        self._known: dict[tuple[int, int], int] = {}

    def check(self, layer: int, experts: NDArray[Any], slots: NDArray[Any], stats: StreamStats) -> None:
        """Raises EngineBug naming the first slot that does not hold its expert."""
        for expert, slot in {(int(e), int(s)) for e, s in zip(experts.ravel(), slots.ravel(), strict=True)}:
            stats.slots_verified += 1
            if self._hash_of_slot(layer, slot) != self._expected(layer, expert):
                raise EngineBug(f"slot {slot} does not hold expert {expert} of layer {layer}")

    def _hash_of_slot(self, layer: int, slot: int) -> int:
        bank = self._bank_of[layer]
        value = 0
        planes = self._source.geometry.banks[bank].planes
        for plane, offset in zip(planes, self._layout.banks[bank].plane_offsets, strict=True):
            start = offset + slot * plane.row_bytes
            value = zlib.crc32(_narrowed(self._memory[start : start + plane.row_bytes], plane), value)
        return value

    def _expected(self, layer: int, expert: int) -> int:
        if (layer, expert) not in self._known:
            recorded = self._source.checksum(layer, expert)
            self._known[layer, expert] = self._hash_of_file(layer, expert) if recorded is None else recorded
        return self._known[layer, expert]

    def _hash_of_file(self, layer: int, expert: int) -> int:
        planes = self._source.geometry.banks[self._bank_of[layer]].planes
        rows: dict[int, bytes] = {}
        for extent in self._source.extents(layer, expert):
            fd = os.open(self._source.files[extent.file], os.O_RDONLY)
            try:
                data = os.pread(fd, extent.nbytes, extent.offset)
            finally:
                os.close(fd)
            for index in extent.planes:
                rows[index], data = data[: planes[index].source_bytes], data[planes[index].source_bytes :]
        value = 0
        for index in range(len(planes)):
            value = zlib.crc32(rows[index], value)
        return value


def _narrowed(row: bytes, plane: Plane) -> bytes:
    """A row as it is on disk: float32 made from bf16 or f16 goes back without loss."""
    if plane.dtype == plane.source_dtype:
        return row
    wide = np.frombuffer(row, np.float32)
    if plane.source_dtype == "float16":
        return wide.astype(np.float16).tobytes()
    return (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes()
