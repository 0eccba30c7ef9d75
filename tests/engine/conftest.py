"""A streamed model beside the same model with all its experts, and the loader that fills its pool."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from mtp_daemon.engine.loader_life import LoaderLife
from mtp_daemon.engine.model import Loaded, load_streamed
from mtp_daemon.engine.slot_verifier import SlotVerifier
from mtp_daemon.engine.stream import ExpertStream, StreamSettings
from mtp_loader.store.open import open_source
from support.checkpoints import make_checkpoint
from support.inline_loader import InlineLoader
from support.pool_shapes import layout_for, new_region, share_of
from support.reference import reference_logits

CHUNKS = ([5, 9, 200, 17], [12], [400], [7])
"""Fed one after the other to the `checkpoint` below, for its `reference`."""


@dataclass
class Streamed:
    """One engine's worth: a model whose experts stream from `loader`."""

    loaded: Loaded
    stream: ExpertStream
    loader: InlineLoader
    life: LoaderLife
    region_fd: int
    context: Any
    sockets: Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("link") / "m", "qwen3_next", quant="q4g64")


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> list[Any]:
    return reference_logits(checkpoint, CHUNKS)


@pytest.fixture
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a short name: a socket's path has room for about a hundred characters."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mtpd-") as directory:
        yield Path(directory)


@pytest.fixture
def serve(sockets: Path) -> Iterator[Callable[..., Streamed]]:
    """`serve(path, share=0.5, slots=None, settings=…, head=None)`: everything is closed at the end, in order."""
    with ExitStack() as stack:
        counter = iter(range(100))

        def start(path: Path, share: float = 1.0, slots: Any = None, settings: Any = None) -> Streamed:
            directory = sockets / str(next(counter))
            directory.mkdir()
            return stack.enter_context(_served(path, share, slots, settings or StreamSettings(), directory))

        yield start


@contextmanager
def _served(path: Path, share: float, slots: Any, settings: StreamSettings, directory: Path) -> Iterator[Streamed]:
    source = open_source(path, widen=True, with_head=False)
    layout = layout_for(source.geometry, slots or share_of(source.geometry, share))
    fd = new_region(layout)
    context: zmq.Context[Any] = zmq.Context()
    life = LoaderLife()
    loader = InlineLoader(source, layout, fd, directory, context)
    life.loader_up(loader.epoch, loader.address)
    verifier = SlotVerifier(fd, layout, source) if settings.verify_slots else None
    stream = ExpertStream(context, life, 1, source.geometry, layout, fd, settings, verifier)
    served = None
    try:
        stream.join()
        served = Streamed(load_streamed(path, stream), stream, loader, life, fd, context, directory)
        yield served
        stream.close()
    finally:
        if served is not None and served.loader is not loader:
            loader = served.loader
        loader.kill()
        stream.link.leave()
        context.destroy(0)
        life.close()
        os.close(fd)
