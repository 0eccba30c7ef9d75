"""Reads one expert's extents into its slot's rows, and checks what came the first time it comes."""

import threading
import zlib
from dataclasses import dataclass
from typing import Literal

from mtp_loader.errors import ReadFailed
from mtp_loader.pool.convert import not_a_number, source_bytes_of, widen_into
from mtp_loader.pool.files import AlignedBuffer, ExpertFile
from mtp_loader.pool.region import PoolRegion
from mtp_loader.pool.shim import Preadv
from mtp_loader.store.source import ExpertSource, Extent

Verify = Literal["first", "always"]


@dataclass(frozen=True)
class Place:
    """An expert and the slot it goes to."""

    bank: int
    slot: int
    layer: int
    expert: int


class ExpertReader:
    """Owns the checkpoint's descriptors. Any thread may read; a slot is read into by its own readers only.

    Raises OSError from the constructor where a file cannot be opened.
    """

    def __init__(self, source: ExpertSource, *, direct: bool, verify: Verify, preadv: Preadv) -> None:
        self.source = source
        self.files = [ExpertFile(path, direct=direct, preadv=preadv) for path in source.files]
        self._verify = verify
        self._banks = {layer.layer: source.geometry.banks[layer.bank] for layer in source.geometry.layers}
        self._stage = threading.local()
        self._checked: dict[tuple[int, int], int] = {}  # (layer, expert) -> generations of its files when checked

    def pieces(self, place: Place) -> tuple[Extent, ...]:
        """The reads an expert takes; they may run side by side. `check` follows the last."""
        return self.source.extents(place.layer, place.expert)

    def read(self, region: PoolRegion, place: Place, extent: Extent) -> None:
        """Fills the extent's rows. Raises ReadFailed."""
        bank, rows = self._banks[place.layer], region.rows(place.bank, place.slot)
        file = self.files[extent.file]
        widened = any(bank.planes[p].dtype != bank.planes[p].source_dtype for p in extent.planes)
        if not widened and self._aligned(region, place, extent, file.alignment):
            file.read(extent.offset, [rows[p] for p in extent.planes], extent.nbytes, aligned=True)
            return
        position, staged = 0, self._staged(file, extent)
        for p in extent.planes:
            plane = bank.planes[p]
            widen_into(rows[p], staged[position : position + plane.source_bytes], plane)
            position += plane.source_bytes

    def check(self, region: PoolRegion, place: Place) -> None:
        """Checksum (where the source has one) and finiteness, on an expert's first read or on each.

        What is wrong is read again if its file was replaced meanwhile. Raises ReadFailed.
        """
        extents = self.pieces(place)
        if self._verify == "first" and self._checked.get((place.layer, place.expert)) == self._generation(extents):
            return
        rows = region.rows(place.bank, place.slot)
        problem = self._problem(place, rows, extents)
        # Replaced just now, or by another reader while this one read what was there before.
        anew = problem is not None and sum(self.files[i].reopen() for i in {extent.file for extent in extents})
        if problem is not None and (anew or self._generation(extents)):
            for extent in extents:
                self.read(region, place, extent)
            problem = self._problem(place, rows, extents)
        if problem is not None:
            raise ReadFailed(problem)
        self._checked[place.layer, place.expert] = self._generation(extents)

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _problem(self, place: Place, rows: list[memoryview], extents: tuple[Extent, ...]) -> str | None:
        bank = self._banks[place.layer]
        where = f"{self.files[extents[0].file].path} at offset {extents[0].offset}"
        expected = self.source.checksum(place.layer, place.expert)
        if expected is not None:
            crc = 0
            for row, plane in zip(rows, bank.planes, strict=True):
                crc = zlib.crc32(source_bytes_of(row, plane), crc)
            if crc != expected:
                return f"{where}: checksum {crc:08x}, it should be {expected:08x}"
        name = not_a_number(bank, rows)
        return None if name is None else f"{where}: {name} holds a NaN or an infinity"

    def _generation(self, extents: tuple[Extent, ...]) -> int:
        return sum(self.files[extent.file].generation for extent in extents)

    def _aligned(self, region: PoolRegion, place: Place, extent: Extent, alignment: int) -> bool:
        """Whether the file's bytes may go straight into the rows; always so where reads are cached."""
        if alignment == 1:
            return True
        offsets = region.row_offsets(place.bank, place.slot)
        planes = self._banks[place.layer].planes
        return extent.offset % alignment == 0 and all(
            offsets[p] % alignment == 0 and planes[p].row_bytes % alignment == 0 for p in extent.planes
        )

    def _staged(self, file: ExpertFile, extent: Extent) -> memoryview:
        """The extent's bytes in this thread's buffer, read with whatever lies around them up to whole blocks."""
        alignment = file.alignment
        before = extent.offset % alignment
        whole = -(-(before + extent.nbytes) // alignment) * alignment
        if not hasattr(self._stage, "buffer"):
            self._stage.buffer = AlignedBuffer()
        stage: memoryview = self._stage.buffer.take(whole)
        file.read(extent.offset - before, [stage], before + extent.nbytes, aligned=True)
        return stage[before : before + extent.nbytes]
