"""The pool as MLX arrays: one a plane, made once, no copy, whatever the backend."""

import os
import weakref
from collections.abc import Callable, Mapping
from math import prod

import mlx.core as mx

from mtp_daemon.engine.errors import EngineBug, RequestRefused
from mtp_daemon.engine.pool_view import cpu, metal
from mtp_protocol.geometry import Bank, BankLayout, Geometry, PoolLayout

_DTYPES = {
    "uint32": mx.uint32,
    "uint8": mx.uint8,
    "float32": mx.float32,
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
}


class PoolView:
    """`banks[b][name]` is the plane `[slots, *shape]` of bank `b`. The loader writes its rows while we look.

    `close` must come before the arrays are freed and after the last graph that reads them; it also runs at exit.
    The descriptor may be closed as soon as the view is made.
    """

    def __init__(self, fd: int, geometry: Geometry, layout: PoolLayout) -> None:
        """Raises RequestRefused where this MLX cannot look at shared memory without a copy, OSError from mapping."""
        if (size := os.fstat(fd).st_size) < layout.nbytes:  # looking past its end would be a SIGBUS, not an error
            raise OSError(f"the pool's region has {size} bytes, its layout {layout.nbytes}")
        restores: list[Callable[[], None]] = []
        self._finalizer = weakref.finalize(self, _restore_all, restores)
        self.banks: list[Mapping[str, mx.array]] = []
        for bank, where in zip(geometry.banks, layout.banks, strict=True):
            self.banks.append(_adopt_bank(fd, bank, where, restores))

    def close(self) -> None:
        self.banks.clear()
        self._finalizer()


def _restore_all(restores: list[Callable[[], None]]) -> None:
    while restores:
        restores.pop()()


def _adopt_bank(fd: int, bank: Bank, where: BankLayout, restores: list[Callable[[], None]]) -> dict[str, mx.array]:
    """One array a plane, adopted one at a time: on the CPU each needs its own size in fresh memory for a moment."""
    planes = {}
    for plane, offset in zip(bank.planes, where.plane_offsets, strict=True):
        nbytes = where.slots * plane.row_bytes
        raw, restore = _adopt(fd, offset, nbytes, plane.name)
        restores.append(restore)
        array = raw.view(_DTYPES[plane.dtype]).reshape(where.slots, *plane.shape)
        mx.eval(array)
        if array.size != where.slots * prod(plane.shape):
            raise EngineBug(f"plane {plane.name}: {array.shape} is not {where.slots} rows of {plane.shape}")
        planes[plane.name] = array
    return planes


def _adopt(fd: int, offset: int, nbytes: int, name: str) -> cpu.Adopted:
    limit = mx.device_info().get("max_buffer_length")
    if mx.metal.is_available() and isinstance(limit, int) and nbytes > limit:
        raise RequestRefused(
            f"plane {name} takes {nbytes} bytes; this GPU's buffers end at {limit}. Use a smaller pool"
        )
    try:
        return metal.adopt(fd, offset, nbytes) if mx.metal.is_available() else cpu.adopt(fd, offset, nbytes)
    except ValueError as error:
        raise RequestRefused(f"MLX cannot look at the pool's plane {name} without copying it: {error}") from error
