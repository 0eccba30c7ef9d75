"""Where experts lie on disk: the one interface of packed stores and plain checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mtp_protocol.geometry import Geometry


@dataclass(frozen=True)
class Extent:
    """One contiguous range of a file that fills rows of one or more planes.

    `file` indexes `ExpertSource.files`. The bytes are the planes' rows in the order of `planes` (indices into the
    bank's planes), each `source_bytes` long, in `source_dtype`; `nbytes` is their sum and counts no padding.
    """

    file: int
    offset: int
    nbytes: int
    planes: tuple[int, ...]


class ExpertSource(Protocol):
    """A checkpoint's experts, by (layer, expert). Immutable; holds no open file."""

    @property
    def geometry(self) -> Geometry:
        """Layers, banks and planes; the head's layers included."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that extents point into."""

    @property
    def alignment(self) -> int:
        """Every extent starts at a multiple of this many bytes, and the bytes from an extent's start to the next
        multiple after its end belong to the file; 1 where nothing is known, so no O_DIRECT.
        """

    def extents(self, layer: int, expert: int) -> tuple[Extent, ...]:
        """The ranges that make up one expert; every plane of the layer's bank is filled exactly once.

        Raises KeyError if the model has no such layer or expert.
        """

    def checksum(self, layer: int, expert: int) -> int | None:
        """zlib.crc32 over the expert's source bytes in plane order, padding excluded; None where none is recorded."""
