"""Pools for tests: how many slots each bank gets, where its planes lie, and how a row looks in them."""

import numpy as np

from mtp_protocol.geometry import BankLayout, Geometry, Plane, PoolLayout
from mtp_protocol.lifeline import create_region

PAGE = 16384


def layout_for(geometry: Geometry, slots: "dict[int, int] | None" = None, generation: int = 1) -> PoolLayout:
    """A pool with that many slots in each bank; by default as many as hold every expert."""
    offset, banks = 0, []
    for bank in geometry.banks:
        everything = sum(y.experts for y in geometry.layers if y.bank == bank.bank)
        count = everything if slots is None else slots[bank.bank]
        offsets = []
        for plane in bank.planes:
            offsets.append(offset)
            offset += -(-count * plane.row_bytes // PAGE) * PAGE
        banks.append(BankLayout(bank.bank, count, tuple(offsets)))
    return PoolLayout(generation, offset, tuple(banks))


def share_of(geometry: Geometry, share: float) -> dict[int, int]:
    """Slots of each bank for a share of its experts, none below its minimum; 0 is the minimum."""
    sizes = {}
    for bank in geometry.banks:
        everything = sum(y.experts for y in geometry.layers if y.bank == bank.bank)
        sizes[bank.bank] = max(geometry.minimum_slots(bank.bank), round(everything * share))
    return sizes


def widened(row: bytes, plane: Plane) -> bytes:
    """A row as it lies in the pool."""
    if plane.dtype == plane.source_dtype:
        return row
    if plane.source_dtype == "float16":
        return np.frombuffer(row, np.float16).astype(np.float32).tobytes()
    return (np.frombuffer(row, np.uint16).astype(np.uint32) << 16).view(np.float32).tobytes()


def new_region(layout: PoolLayout) -> int:
    return create_region(max(layout.nbytes, PAGE))
