"""The pool's region as the loader writes it: one row of every plane is a slot."""

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator

from mtp_loader.errors import LoaderBug
from mtp_protocol.geometry import Geometry, PoolLayout


class PoolRegion:
    """Maps `fd`, which stays the caller's. `layout` must lie within `nbytes`; else LoaderBug.

    Raises OSError where the system cannot map it. Rows are handed out as memoryviews; after `close` none may be used.
    """

    def __init__(self, fd: int, nbytes: int, geometry: Geometry, layout: PoolLayout) -> None:
        self.layout = layout
        self._planes: list[list[tuple[int, int]]] = []  # per bank and plane: offset, row bytes
        for bank, placed in zip(geometry.banks, layout.banks, strict=True):
            planes = [(o, p.row_bytes) for o, p in zip(placed.plane_offsets, bank.planes, strict=True)]
            if any(offset < 0 or offset + placed.slots * row > nbytes for offset, row in planes):
                raise LoaderBug(f"bank {bank.bank} lies outside its region of {nbytes} bytes")
            self._planes.append(planes)
        self._map = mmap.mmap(fd, nbytes)
        self._bytes = memoryview(self._map)

    def rows(self, bank: int, slot: int) -> list[memoryview]:
        """The slot's row of each plane of its bank, writable, in plane order."""
        return [self._bytes[o + slot * n : o + (slot + 1) * n] for o, n in self._planes[bank]]

    def row_offsets(self, bank: int, slot: int) -> list[int]:
        """Where those rows begin; the region itself begins on a page."""
        return [o + slot * n for o, n in self._planes[bank]]

    def punch(self, limits: tuple[int, ...]) -> None:
        """Gives the memory of all slots at or beyond `limits` (one per bank) back to the system, where it can (Linux).

        Whole pages only; the rows read as zeros afterwards. Does nothing on macOS, where a smaller pool is a new one.
        """
        if sys.platform != "linux":
            return
        page = os.sysconf("SC_PAGE_SIZE")
        for first, last in self._tails(limits):
            first, last = -(-first // page) * page, last // page * page
            if first < last:
                self._map.madvise(mmap.MADV_REMOVE, first, last - first)

    def _tails(self, limits: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        for planes, limit, placed in zip(self._planes, limits, self.layout.banks, strict=True):
            for offset, row in planes:
                yield offset + limit * row, offset + placed.slots * row

    def close(self) -> None:
        """Unmaps the region; where a row is still referred to (an error's traceback, say) when that is gone."""
        self._bytes.release()
        with contextlib.suppress(BufferError):
            self._map.close()
