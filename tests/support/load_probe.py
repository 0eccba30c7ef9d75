"""Run by itself: loads a model through a quarter pool, decodes a little, and prints what that took."""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import zmq

from mtp_daemon.engine.loader_life import LoaderLife
from mtp_daemon.engine.model import load_streamed
from mtp_daemon.engine.stream import ExpertStream
from mtp_loader.store.open import open_source
from support.inline_loader import InlineLoader
from support.pool_shapes import layout_for, new_region, share_of
from support.reference import streamed_logits


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def bytes_read() -> int | None:
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except OSError:
        return None


class Served:
    def __init__(self, loaded: object, stream: ExpertStream) -> None:
        self.loaded, self.stream = loaded, stream


def main(path: Path) -> None:
    mx.eval(mx.zeros((1 << 20,)))
    source = open_source(path, widen=True)
    layout = layout_for(source.geometry, share_of(source.geometry, 0.25))
    fd, directory = new_region(layout), Path(tempfile.mkdtemp(prefix="mtpd-"))
    context, life = zmq.Context(), LoaderLife()
    peak_before, read_before = peak(), bytes_read()
    loader = InlineLoader(source, layout, fd, directory, context)
    life.loader_up(loader.epoch, loader.address)
    stream = ExpertStream(context, life, 1, source.geometry, layout, fd)
    stream.join()
    served = Served(load_streamed(path, stream), stream)
    read_after = bytes_read()
    chunks = ([5, 6, 7], [8], [9])
    first = streamed_logits(served, chunks)
    again = streamed_logits(served, chunks)
    print(
        json.dumps(
            {
                "experts": source.geometry.expert_bytes,
                "pool": layout.nbytes,
                "dense": served.loaded.facts["dense_bytes"],  # type: ignore[attr-defined]
                "peak": peak() - peak_before,
                "read": None if read_before is None or read_after is None else read_after - read_before,
                "equal_to_itself": all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)),
            }
        )
    )
    stream.close()
    loader.kill()
    context.destroy(0)
    os.close(fd)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
