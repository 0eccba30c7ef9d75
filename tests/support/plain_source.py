"""A checkpoint of random bytes in the simplest layout: one record an expert, for tests of reading alone."""

import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtp_loader.store.source import Extent
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation

PLANES = (
    Plane("gate.weight", "uint32", "uint32", (16, 8)),
    Plane("gate.scales", "float32", "float32", (16,)),
    Plane("down.weight", "uint32", "uint32", (8, 16)),
)


@dataclass
class PlainSource:
    """`experts` records in one file of one layer, `alignment` apart; `lead` bytes before the first."""

    path: Path
    experts: int
    planes: tuple[Plane, ...] = PLANES
    alignment: int = 4096
    lead: int = 0
    checksums: bool = True
    records: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)
        for _ in range(self.experts):
            self.records.append(b"".join(self._row(plane, rng) for plane in self.planes))
        self.write()

    @staticmethod
    def _row(plane: Plane, rng: np.random.Generator) -> bytes:
        values = rng.standard_normal(plane.shape).astype(np.float32)
        match plane.source_dtype:
            case "float32":
                return values.tobytes()
            case "float16":
                return values.astype(np.float16).tobytes()
            case "bfloat16":
                return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return rng.integers(0, 256, plane.source_bytes, np.uint8).tobytes()

    @property
    def stride(self) -> int:
        return -(-len(self.records[0]) // self.alignment) * self.alignment

    def write(self) -> None:
        with open(self.path, "wb") as file:
            file.write(bytes(self.lead))
            for record in self.records:
                file.write(record.ljust(self.stride, b"\0"))

    @property
    def geometry(self) -> Geometry:
        plain = Quantisation()
        bank = Bank(0, self.planes, plain, plain, plain, (0,))
        return Geometry("plain", "plain", True, 1, (bank,), (Layer(0, 0, self.experts, 2),))

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def extents(self, layer: int, expert: int) -> tuple[Extent, ...]:
        offset = self.lead + expert * self.stride
        return (Extent(0, offset, len(self.records[0]), tuple(range(len(self.planes)))),)

    def checksum(self, layer: int, expert: int) -> int | None:
        return zlib.crc32(self.records[expert]) if self.checksums else None
