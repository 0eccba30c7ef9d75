"""Checksums of whole files."""

import zlib
from collections.abc import Callable
from pathlib import Path

_READ_BYTES = 8 << 20


def checksum_of(path: Path, progress: Callable[[int], None] | None = None) -> int:
    """zlib.crc32 over a whole file."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            crc = zlib.crc32(block, crc)
            if progress:
                progress(len(block))
    return crc
