"""Writes a safetensors file tensor by tensor, its header first, without holding it in memory."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mtp_loader.errors import LoaderBug
from mtp_loader.store.checksum import checksum_of
from mtp_loader.store.index import PackedFile
from mtp_loader.store.packing.dense import Job
from mtp_loader.store.packing.layer import WRITE_BYTES


def write_safetensors(path: Path, jobs: Sequence[Job], progress: Callable[[int], None]) -> PackedFile:
    """Run `jobs` and write their outputs to `path`; returns its name, size and checksum. Raises OSError."""
    outputs = [o for job in jobs for o in job.outputs]
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    cursors: dict[str, int] = {}
    ends: dict[str, int] = {}
    end = 0
    # Widest types first keeps every tensor aligned to its own type, as mapped files like it.
    for output in sorted(outputs, key=lambda o: (-_width(o.nbytes), o.name)):
        header[output.name] = {
            "dtype": output.dtype,
            "shape": list(output.shape),
            "data_offsets": [end, end + output.nbytes],
        }
        cursors[output.name] = end
        end += output.nbytes
        ends[output.name] = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb", buffering=0) as file:
        _write_all(file.fileno(), len(text).to_bytes(8, "little") + text, 0)
        for job in jobs:
            for blocks in job.blocks():
                for output, block in zip(job.outputs, blocks, strict=True):
                    _write_all(file.fileno(), block.data, 8 + len(text) + cursors[output.name])
                    cursors[output.name] += block.nbytes
                    progress(block.nbytes)
        for output in outputs:
            if cursors[output.name] != ends[output.name]:
                raise LoaderBug(f"{output.name}: {cursors[output.name]} is not its end, {ends[output.name]}")
        os.ftruncate(file.fileno(), 8 + len(text) + end)
    return PackedFile(path.name, 8 + len(text) + end, checksum_of(path))


def _width(nbytes: int) -> int:
    return next(w for w in (16, 8, 4, 2, 1) if nbytes % w == 0)


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while view:
        written = os.pwrite(fd, view[:WRITE_BYTES], offset)
        view, offset = view[written:], offset + written
