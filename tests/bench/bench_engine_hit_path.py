"""What streaming costs where nothing is missing, and what it costs where something is.

    .venv/bin/python tests/bench/bench_engine_hit_path.py [--tokens 32] [--rounds 5] [--family qwen3_moe] [--small]

Prints: microseconds of bookkeeping a MoE layer on the hit path (the gather itself left out); decode tokens a second
with every expert resident and nothing read on the host, with every expert resident and one host read a layer, and at
half and a quarter of a warm pool through a real loader process, each beside mlx-lm's own `generate_step` on the same
checkpoint, measured in turn (A B A B ...): medians, with minimum and maximum.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from mtp_daemon.engine.loader_life import LoaderLife
from mtp_daemon.engine.model import load_streamed
from mtp_daemon.engine.stream import DECODE, PROMPT, ExpertStream
from mtp_daemon.engine.streamed import StreamedSwitchGLU
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from mtp_protocol.loader_messages import EngineUp
from support.checkpoints import make_checkpoint
from support.loader_process import ScriptedFront, scripted_front

# 12 layers x 64 experts, top-8, 4 bits with float32 scales: 755 MB of experts; --small is a twentieth of it.
SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "moe_intermediate_size": 512,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 12,
}
SMALL = {**SIZES, "hidden_size": 512, "moe_intermediate_size": 256, "num_experts": 32, "num_hidden_layers": 6}
PROMPT_IDS = [(7 * i * i + 3 * i) % 500 for i in range(32)]


class Engine:
    """A streamed model over a loader process with a pool of `slots` slots."""

    def __init__(self, front: ScriptedFront, model: Path, slots: int) -> None:
        address = front.start(slots)
        assert front.layout is not None
        self.life = LoaderLife()
        self.stream = ExpertStream(front.context, self.life, 1, front.source.geometry, front.layout, front.fd)
        front.send(EngineUp(1, os.getpid()))
        self.life.loader_up(front.epoch, address)
        self.loaded = load_streamed(model, self.stream)
        self.stream.join()

    def decode(self, count: int) -> float:
        """Tokens a second of plain greedy decoding, built one forward ahead where everything is resident."""
        trunk, stream = self.loaded.trunk, self.stream
        cache = trunk.make_cache()
        with stream.forward(PROMPT_IDS[:-1], PROMPT):
            mx.eval(trunk.hidden(mx.array([PROMPT_IDS[:-1]]), cache).post)
        stream.settle()

        def launch(token: mx.array) -> mx.array:
            with stream.forward(range(1), DECODE):
                logits = trunk.logits(trunk.hidden(token[None], cache).post)
                chosen = mx.argmax(logits[:, -1], axis=-1)
                mx.async_eval(chosen)  # type: ignore[no-untyped-call]
            return chosen

        token = launch(mx.array(PROMPT_IDS[-1:]))
        token.item()
        began = time.perf_counter()
        for _ in range(count):
            if stream.all_resident:
                following = launch(token)
                token.item()
                token = following
            else:
                token.item()
                stream.settle()
                token = launch(token)
        token.item()
        seconds = time.perf_counter() - began
        stream.settle()
        return count / seconds

    def fill(self) -> None:
        """Route every expert of every layer through the pool once."""
        for layer in self.stream.geometry.layers:
            experts = range(layer.experts)
            demand = self.stream.link.ask(layer.layer, [e for e in experts if self._absent(layer.layer, e)])
            while self.stream.link.collect(demand):
                self.stream.residency.finished()

    def _absent(self, layer: int, expert: int) -> bool:
        return int(self.stream.residency.table(layer)[expert]) < 0

    def close(self) -> None:
        self.stream.close()
        self.life.close()


def mlx_lm_decode(model: Any, count: int) -> float:
    """Tokens a second of mlx-lm's own loop, from its second token on."""
    tokens = generate_step(mx.array(PROMPT_IDS), model, max_tokens=count + 1)
    next(tokens)
    began = time.perf_counter()
    for _ in tokens:
        pass
    return count / (time.perf_counter() - began)


def bookkeeping_us(engine: Engine, repeats: int = 2000) -> tuple[float, float]:
    """Microseconds one layer's call takes on the hit path when its gather costs nothing and its ids are computed, and
    how many of them are MLX's own: waiting for what is there already, and making the array of slot numbers.
    """
    stream = engine.stream
    layer = next(m for m in engine.loaded.model.modules() if isinstance(m, StreamedSwitchGLU))
    top_k = stream.top_k[layer.layer]
    x, ids = mx.zeros((1, 1, PROBE_WIDTH)), mx.arange(top_k)[None, None]
    rows = mx.zeros((1, 1, top_k, PROBE_WIDTH))
    mx.eval(x, ids, rows)
    planes, whole = stream.planes[layer.bank], stream.residency.whole
    gather = planes.gather
    planes.gather = lambda *_: rows  # type: ignore[method-assign]
    stream.residency.whole = lambda _: False  # type: ignore[method-assign]
    samples = []
    try:
        for _ in range(repeats // 100):
            with stream.forward([1], DECODE):
                began = time.thread_time()  # this thread's own time: other processes do not count
                for _ in range(100):
                    layer(x, ids, rows)
                samples.append((time.thread_time() - began) / 100 * 1e6)
                stream.now.layers.clear()
            stream.settle()
    finally:
        planes.gather, stream.residency.whole = gather, whole  # type: ignore[method-assign]
    slots = np.zeros((1, 1, top_k), np.uint32)
    began = time.thread_time()
    for _ in range(repeats):
        mx.eval(ids, rows)
        mx.array(slots)
    return min(samples), (time.thread_time() - began) / repeats * 1e6


PROBE_WIDTH = 8


def in_turn(rounds: int, **ways: Callable[[], float]) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()  # warm-up over the full length
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].append(way())
    return results


def show(results: dict[str, list[float]]) -> None:
    base = statistics.median(next(iter(results.values())))
    for name, values in results.items():
        middle = statistics.median(values)
        spread = f"{min(values):8.2f} .. {max(values):8.2f}"
        print(f"  {name:34} {middle:8.2f} tok/s  ({spread})  {middle / base:6.3f} of mlx-lm")


def everything_resident(packed: Path, reference: Any, experts: int, rounds: int, count: int) -> None:
    """A layer's bookkeeping, then decoding with and without the host's read of each layer's ids."""
    with scripted_front(Path(tempfile.mkdtemp(prefix="mtpd-")), packed, widen=True) as front:
        engine = Engine(front, packed, experts)
        engine.fill()
        whole_us, mlx_us = bookkeeping_us(engine)
        print(f"a MoE layer on the hit path without its gather: {whole_us:.1f} us, {mlx_us:.1f} of them MLX's calls")
        print(f"  bookkeeping {whole_us - mlx_us:.1f} us (limit 20)")
        whole = engine.stream.residency.whole

        def host_reads() -> float:
            engine.stream.residency.whole = lambda _: False  # type: ignore[method-assign]
            try:
                return engine.decode(count)
            finally:
                engine.stream.residency.whole = whole  # type: ignore[method-assign]

        print(f"everything resident, {count} tokens a turn:")
        ways = {
            "mlx-lm generate_step": lambda: mlx_lm_decode(reference, count),
            "streamed, no host read": lambda: engine.decode(count),
            "streamed, one host read a layer": host_reads,
        }
        show(in_turn(rounds, **ways))
        engine.close()


def a_warm_pool(packed: Path, reference: Any, slots: int, rounds: int, count: int) -> None:
    """Decoding through a pool of `slots` slots, beside mlx-lm."""
    with scripted_front(Path(tempfile.mkdtemp(prefix="mtpd-")), packed, widen=True) as front:
        engine = Engine(front, packed, slots)
        ways = {
            "mlx-lm generate_step": lambda: mlx_lm_decode(reference, count),
            "streamed": lambda: engine.decode(count),
        }
        show(in_turn(rounds, **ways))
        stats = engine.stream.stats
        rate = stats.hits / max(1, stats.hits + stats.misses)
        print(f"  hit rate {rate:.3f}, {stats.misses} misses, waited {stats.wait_s:.2f} s in all")
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--family", default="qwen3_moe")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--directory", type=Path, help="keep the checkpoints here and use them again")
    args = parser.parse_args()
    root = args.directory or Path(tempfile.mkdtemp(prefix="mtpd-"))
    sizes = SMALL if args.small else SIZES
    path, packed = root / "m", root / "packed"
    if not path.exists():
        make_checkpoint(path, args.family, quant="q4g64", changes=sizes)
    if not packed.exists():
        pack(path, packed, PackSettings(scales="keep"), lambda line: None)
    reference, _ = load_model(path)
    experts = sizes["num_experts"] * sizes["num_hidden_layers"]
    everything_resident(packed, reference, experts, args.rounds, args.tokens)
    for share in (0.5, 0.25):
        print(f"a pool of {share:.0%}, warm:")
        a_warm_pool(packed, reference, round(experts * share), args.rounds, args.tokens)


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
