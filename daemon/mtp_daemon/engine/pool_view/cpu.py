"""Shared memory as an MLX array on the CPU backend.

MLX's CPU backend refuses to adopt memory of ours (`mx.asarray(copy=False)` raises ValueError), but its arrays live in
ordinary heap memory. So it goes the other way round: let MLX allocate an array two pages larger than the range, then
map the shared file over the whole pages inside it. MLX keeps its own first bytes (a size header lies before the data)
and its last ones; what lies between is the pool.

The way back matters more: when MLX frees the array, malloc may hand those addresses to anyone, and the heap would write
into the pool. So private memory is mapped back over the range before the array may be freed.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mtp_daemon.engine.pool_view.memory import PAGE, map_private_over, map_shared_over, up

Adopted = tuple[mx.array, Callable[[], None]]


def adopt(fd: int, offset: int, nbytes: int) -> Adopted:
    """`(array, restore)`: uint8 `[nbytes]` that is the file's range, and what must be called before it is freed.

    `offset` need not be aligned. Touches `nbytes` of fresh memory for a moment: adopt one plane at a time.
    Raises OSError if the range cannot be mapped.
    """
    lead = offset % PAGE
    length = up(lead + nbytes)
    # `mx.zeros` is evaluated here because the address is wanted now; MLX never moves an evaluated array.
    host = mx.zeros((length + 2 * PAGE,), mx.uint8)
    mx.eval(host)
    address = np.array(host, copy=False).ctypes.data
    interior = up(address)
    map_shared_over(interior, length, fd, offset - lead)
    start = interior - address + lead
    array = host[start : start + nbytes]
    mx.eval(array)  # a slice of contiguous memory is a view: evaluated once, it stays one

    def restore() -> None:
        # `host` is held by this closure: it cannot be freed before its pages are its own again.
        map_private_over(interior, length)
        del_host()

    holder: list[mx.array] = [host]
    del_host = holder.clear
    return array, restore
