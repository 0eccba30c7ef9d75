"""Dense tensors for the packed store: under mlx-lm's names, quantised where asked, a few megabytes in memory at a time.

A tensor that mlx-lm's `sanitize` passes through is copied or quantised in blocks of rows straight from its file; only
those it computes (a moved axis, a shifted norm) are evaluated by MLX.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.packing.numbers import FLOATS, NUMPY, mlx_from, numpy_from, widened
from mtp_loader.store.safetensors import Tensor
from mtp_protocol.geometry import Quantisation

_BLOCK_BYTES = 16 << 20
Block = NDArray[np.uint8]


@dataclass(frozen=True)
class Output:
    """A tensor to be written: safetensors' type name and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return prod(self.shape) * NUMPY[self.dtype].itemsize


@dataclass(frozen=True)
class Job:
    """Makes one or several outputs side by side: each item of `blocks()` has the next bytes of every output."""

    outputs: tuple[Output, ...]
    blocks: Callable[[], Iterator[Sequence[Block]]]

    @property
    def nbytes(self) -> int:
        """Bytes of all outputs."""
        return sum(o.nbytes for o in self.outputs)


@dataclass(frozen=True)
class Value:
    """What a dense tensor is made from: a tensor in a file as it is, or an array MLX still has to compute."""

    tensor: Tensor | None
    array: mx.array

    @property
    def dtype(self) -> str:
        """safetensors' name of the type."""
        return self.tensor.dtype if self.tensor else FLOATS.get(self.array.dtype) or _other(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return self.tensor.shape if self.tensor else tuple(self.array.shape)

    def rows(self) -> Iterator[Block]:
        """The bytes in blocks of whole rows (all axes but the last are rows)."""
        if self.tensor is None:
            yield numpy_from(self.array)
            return
        row = (self.shape[-1] if self.shape else 1) * NUMPY[self.dtype].itemsize
        yield from read_blocks(self.tensor, max(_BLOCK_BYTES // max(row, 1), 1) * row)


def read_blocks(tensor: Tensor, block_bytes: int) -> Iterator[Block]:
    """A tensor's bytes, `block_bytes` at a time; raises DamagedCheckpoint where the file is cut meanwhile."""
    with open(tensor.path, "rb", buffering=0) as file:
        done = 0
        while done < tensor.nbytes:
            want = min(block_bytes, tensor.nbytes - done)
            block = bytearray(want)
            view, got = memoryview(block), 0
            while got < want:
                read = os.preadv(file.fileno(), [view[got:]], tensor.offset + done + got)
                if not read:
                    raise DamagedCheckpoint(tensor.path, f"ends inside the tensor {tensor.name!r}")
                got += read
            yield np.frombuffer(block, np.uint8)
            done += want


def copy_job(name: str, value: Value, widen: bool) -> Job:
    """The tensor as it is, or as float32 when `widen` and it is a narrower float."""
    dtype = "F32" if widen and value.dtype in ("BF16", "F16") else value.dtype

    def blocks() -> Iterator[Sequence[Block]]:
        for block in value.rows():
            yield (block if dtype == value.dtype else widened(block, value.dtype),)

    return Job((Output(name, dtype, value.shape),), blocks)


def quantise_job(module: str, value: Value, settings: Quantisation, widen: bool) -> Job:
    """`module`.weight, .scales (and .biases) of a weight whose last axis is quantised by mx.quantize."""
    *rows, inputs = value.shape
    sample = _quantised(mx.zeros((1, inputs), dtype=_quantise_dtype(value.dtype, widen)), settings)
    outputs = tuple(
        Output(f"{module}.{part}", FLOATS.get(a.dtype) or _other(a), (*rows, a.shape[-1]))
        for part, a in zip(("weight", "scales", "biases"), sample, strict=False)
    )

    def blocks() -> Iterator[Sequence[Block]]:
        for block in value.rows():
            weight = mlx_from(block, value.dtype, (-1, inputs)).astype(_quantise_dtype(value.dtype, widen))
            yield [numpy_from(a) for a in _quantised(weight, settings)]

    return Job(outputs, blocks)


def _quantised(weight: mx.array, settings: Quantisation) -> Sequence[mx.array]:
    parts: Sequence[mx.array] = mx.quantize(
        weight, group_size=settings.group_size, bits=settings.bits, mode=settings.mode
    )
    return parts


def _quantise_dtype(dtype: str, widen: bool) -> mx.Dtype:
    # The scales get the type of what is quantised.
    return mx.float32 if widen or dtype == "F32" else {"BF16": mx.bfloat16, "F16": mx.float16}[dtype]


def _other(array: mx.array) -> str:
    name = {mx.uint32: "U32", mx.uint8: "U8", mx.int32: "I32", mx.int64: "I64", mx.bool_: "BOOL"}.get(array.dtype)
    if name is None:
        raise DamagedCheckpoint("model", f"a dense tensor has the type {array.dtype}, which no model needs")
    return name


def load_lazily(paths: Sequence[Path]) -> Mapping[str, mx.array]:
    """Every tensor of the files as an array that is not read before it is evaluated."""
    weights: dict[str, mx.array] = {}
    for path in paths:
        loaded = mx.load(str(path))
        assert isinstance(loaded, dict)
        weights.update(loaded)
    return weights
