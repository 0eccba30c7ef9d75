"""Bytes, NumPy and MLX arrays of the same numbers. NumPy has no bfloat16: its bytes travel as uint16."""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

NUMPY: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
FLOATS = {mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16"}
Bytes = NDArray[np.uint8]


def widened(block: Bytes, dtype: str) -> Bytes:
    """bf16 or f16 numbers as float32: exact."""
    if dtype == "BF16":
        return (block.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)
    return block.view(np.float16).astype(np.float32).view(np.uint8)


def mlx_from(block: Bytes, dtype: str, shape: tuple[int, ...]) -> mx.array:
    """An MLX array of a block of bytes, whose type has safetensors' name `dtype`."""
    numbers = np.ascontiguousarray(block).view(NUMPY[dtype]).reshape(shape)
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if dtype == "BF16" else array


def numpy_from(array: mx.array) -> Bytes:
    """The bytes of an array, row by row; evaluates it."""
    array = mx.contiguous(array)
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.array(array).reshape(-1).view(np.uint8)
