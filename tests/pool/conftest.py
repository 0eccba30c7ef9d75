"""A pool region for a source of experts."""

import os
from collections.abc import Callable, Iterator

import pytest

from mtp_loader.pool.layout import make_layout
from mtp_loader.pool.region import PoolRegion
from mtp_protocol.lifeline import create_region
from support.plain_source import PlainSource


@pytest.fixture
def region_of() -> Iterator[Callable[[PlainSource], PoolRegion]]:
    opened: list[tuple[PoolRegion, int]] = []

    def make(source: PlainSource) -> PoolRegion:
        geometry = source.geometry
        layout = make_layout(geometry, geometry.expert_bytes, 1)
        fd = create_region(layout.nbytes)
        opened.append((PoolRegion(fd, layout.nbytes, geometry, layout), fd))
        return opened[-1][0]

    yield make
    for region, fd in opened:
        region.close()
        os.close(fd)
