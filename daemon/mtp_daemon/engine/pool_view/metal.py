"""Shared memory as an MLX array on Metal.

Metal buffers can be made over host memory of ours without a copy when it starts on a page (16 KiB on Apple silicon):
`mx.asarray(buffer, copy=False)` does that. One mapping a plane, so that every plane starts on a page whatever the
region's layout, and so that planes are given back one by one.
"""

import mmap
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mtp_daemon.engine.pool_view.memory import PAGE, up

Adopted = tuple[mx.array, Callable[[], None]]


def adopt(fd: int, offset: int, nbytes: int) -> Adopted:
    """`(array, restore)`: uint8 `[nbytes]` that is the file's range.

    Raises OSError from mapping, ValueError if MLX would copy.
    """
    if offset % PAGE:
        raise ValueError(f"a plane at offset {offset} does not start on a page of {PAGE} bytes")
    mapping = mmap.mmap(fd, up(nbytes), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
    buffer = np.frombuffer(mapping, np.uint8, nbytes)
    array = mx.asarray(buffer, copy=False)
    # MLX holds the buffer for as long as the array lives, and the buffer holds the mapping: nothing to restore.
    return array, lambda: None
