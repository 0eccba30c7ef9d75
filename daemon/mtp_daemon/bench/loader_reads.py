"""What the loader's own reader threads get of a model's experts, without its process."""

import os
import random
import threading
import time
from collections import deque
from pathlib import Path

from mtp_daemon.bench.disk import Read
from mtp_daemon.errors import EnvironmentFailure
from mtp_loader.pool.expert_reader import ExpertReader, Place
from mtp_loader.pool.layout import make_layout
from mtp_loader.pool.readers import ReaderThreads
from mtp_loader.pool.region import PoolRegion
from mtp_loader.store import open_source
from mtp_protocol.geometry import Geometry, PoolLayout
from mtp_protocol.lifeline import create_region

_SLOTS_PER_THREAD = 4
_STUCK_S = 60.0


def read_experts(model: Path, threads: int, direct: bool, total_bytes: int, seed: int = 0) -> Read:
    """Experts read into a pool in random order, each once, about `total_bytes` of them if there are as many.

    Checksums and NaN checks are included, as at the first read of each. Raises EnvironmentFailure where a read fails or
    hangs.
    """
    source = open_source(model, widen=False)
    geometry = source.geometry
    order = [(y.layer, expert, y.bank) for y in geometry.layers for expert in range(y.experts)]
    random.Random(seed).shuffle(order)
    layout = _small(geometry, threads)
    fd = create_region(layout.nbytes)
    region = PoolRegion(fd, layout.nbytes, geometry, layout)
    reader = ExpertReader(source, direct=direct, verify="first", preadv=os.preadv)
    woken = threading.Semaphore(0)
    readers = ReaderThreads(reader, threads, woken.release)
    try:
        return _read_all(readers, region, geometry, deque(order), total_bytes, woken)
    finally:
        readers.stop(_STUCK_S)
        reader.close()
        region.close()
        os.close(fd)


def _read_all(
    readers: ReaderThreads,
    region: PoolRegion,
    geometry: Geometry,
    order: deque[tuple[int, int, int]],
    total_bytes: int,
    woken: threading.Semaphore,
) -> Read:
    """Every slot is filled again as soon as its read has ended."""
    free = [deque(range(bank.slots)) for bank in region.layout.banks]
    asked = done = 0
    began = time.monotonic()
    while True:
        while order and asked < total_bytes and free[order[0][2]]:
            layer, expert, bank = order.popleft()
            readers.submit(region, Place(bank, free[bank].popleft(), layer, expert), demand=True)
            asked += geometry.banks[bank].source_bytes
        if done == asked:
            return Read(done, time.monotonic() - began)
        if not woken.acquire(timeout=_STUCK_S):
            raise EnvironmentFailure(f"the disk has given nothing for {_STUCK_S:.0f} s")
        for result in readers.results():
            if result.error is not None:
                raise EnvironmentFailure(f"an expert cannot be read: {result.error}")
            free[result.place.bank].append(result.place.slot)
            done += geometry.banks[result.place.bank].source_bytes


def _small(geometry: Geometry, threads: int) -> PoolLayout:
    """A pool with enough slots to keep every thread busy, and no more."""
    wanted = sum(_SLOTS_PER_THREAD * threads * bank.slot_bytes for bank in geometry.banks)
    return make_layout(geometry, max(geometry.minimum_bytes, wanted), 1)
