"""Reads the header of a safetensors file, trusting nothing in it.

The format: 8 bytes of little-endian length, that many bytes of JSON `{name: {dtype, shape, data_offsets}}`, then the
data. A header is believed only when every tensor lies inside the file, none overlaps another, each has exactly the
bytes its type and shape need, and the file ends where the last tensor does.
"""

import json
import os
import stat
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mtp_loader.errors import DamagedCheckpoint

MAX_HEADER_BYTES = 100 << 20  # the limit of the format's own reference reader
MAX_NAME_CHARACTERS = 1000
MAX_DIMENSIONS = 16

_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class Tensor:
    """One tensor in a file: `offset` counts from the file's start."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def is_fp8(self) -> bool:
        """FP8 data, which MLX would load as plain bytes without an error."""
        return self.dtype.startswith("F8_")


@dataclass(frozen=True)
class Header:
    """A file's tensors by name, with the raw header for fingerprints."""

    path: Path
    nbytes: int
    raw: bytes
    tensors: dict[str, Tensor]


def read_header(path: Path) -> Header:
    """The checked header of `path`; raises DamagedCheckpoint that names the file and what is wrong."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            if len(start) < 8:
                raise DamagedCheckpoint(path, f"has {size} bytes; a safetensors file has at least 8")
            length = int.from_bytes(start, "little")
            if length > MAX_HEADER_BYTES:
                raise DamagedCheckpoint(path, f"its header claims {length} bytes; the limit is {MAX_HEADER_BYTES}")
            raw = file.read(length)
    except FileNotFoundError:
        raise DamagedCheckpoint(path, "is missing") from None
    except OSError as error:
        raise DamagedCheckpoint(path, f"cannot be read: {error.strerror or error}") from error
    if len(raw) < length:
        raise DamagedCheckpoint(path, f"has {size} bytes; its header alone should have {length + 8}")
    return Header(path, size, raw, _tensors(path, raw, 8 + length, size))


def _open_regular(path: str, flags: int) -> int:
    # Without O_NONBLOCK a FIFO put in a checkpoint's place would hang us here.
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpoint(path, "is not a regular file")
    return fd


def parse_json(path: Path, raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object without repeated keys; raises DamagedCheckpoint for anything else."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [k for k, _ in pairs]
            twice = next(n for n in names if names.count(n) > 1)
            raise DamagedCheckpoint(path, f"{what} names {twice[:80]!r} twice")
        return made

    try:
        value = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(path, f"{what} is not JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise DamagedCheckpoint(path, f"{what} is not a JSON object")
    return value


def _tensors(path: Path, raw: bytes, data_start: int, size: int) -> dict[str, Tensor]:
    entries = parse_json(path, raw, "its header")
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not isinstance(metadata, dict):  # mx.save_safetensors writes null when it has none
        raise DamagedCheckpoint(path, "its __metadata__ is not an object")
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}
    end = data_start
    previous = ""
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.offset + t.nbytes)):
        if tensor.offset < end and tensor.nbytes:
            raise DamagedCheckpoint(path, f"tensor {tensor.name!r} overlaps {previous!r}")
        end, previous = max(end, tensor.offset + tensor.nbytes), tensor.name
    if end != size:
        raise DamagedCheckpoint(path, f"has {size} bytes but should have {end}")
    return tensors


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> Tensor:
    def bad(why: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(path, f"tensor {name[:120]!r} {why}")

    if not isinstance(entry, dict) or len(name) > MAX_NAME_CHARACTERS:
        raise bad("has no readable entry")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise bad(f"has the unknown type {str(dtype)[:40]!r}")
    shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if shape is None or len(shape) > MAX_DIMENSIONS:
        raise bad("has no readable shape")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise bad("has no readable data_offsets")
    bits = prod(shape) * _BITS[dtype]
    nbytes = offsets[1] - offsets[0]
    if bits != nbytes * 8:
        raise bad(f"has {nbytes} bytes; {dtype} {list(shape)} needs {bits // 8}")
    return Tensor(path, name, dtype, shape, data_start + offsets[0], nbytes)


def _counts(value: Any) -> tuple[int, ...] | None:
    """A list of whole numbers as they can count elements or bytes of a file; None for anything else."""
    if isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value):
        return tuple(value)
    return None
