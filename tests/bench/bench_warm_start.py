"""What a warm start is worth, token by token: `python tests/bench/bench_warm_start.py [--share 25 …]`.

A loader process first serves some texts and keeps its statistics. Then each of the other texts is decoded twice, by a
fresh loader and a fresh engine: once with an empty pool and without statistics, once with a pool that the loader filled
from them. Texts are fed one token at a time, then sampled on, the same tokens both times, which is checked. Printed are
both curves, hit % of each token over all texts together, and after how many tokens each stays at 90 % of the steady
rate over a window of four tokens. The goal: a warm start takes at most half the tokens that an empty pool takes. Exit
code 1 where it is missed.

The steady rate is that of the last half of all tokens, both ways together. Nothing here depends on how fast anything
is, but for what was read ahead in time.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mlx.core as mx

from engine.test_with_loader_process import Engine, engine_of
from mtp_daemon.bench.figures import table
from mtp_daemon.engine.stream import DECODE
from mtp_daemon.engine.text.prompt import load_vocabulary
from mtp_loader.store import open_source
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.loader_messages import Stop
from support.loader_process import scripted_front
from support.prompts import PROMPTS

WINDOW = 4
READY = 0.9


@dataclass(frozen=True)
class Token:
    """How many experts one token's forward asked for, and how many of them were resident."""

    hits: int
    requests: int


@dataclass(frozen=True)
class Curves:
    """Hit rates of each token, 0..1, over all texts; `*_ready`: tokens before the steady rate is as good as reached."""

    share: int
    steady: float
    empty: list[float]
    warm: list[float]
    empty_ready: int
    warm_ready: int

    @property
    def met(self) -> bool:
        return 2 * self.warm_ready <= self.empty_ready


@contextmanager
def started(model: Path, slots: int, state: Path | None) -> Iterator[Engine]:
    """An engine with a loader process that keeps its statistics in `state`; None: an empty pool and none kept.

    Where there are statistics of an earlier run, the pool has been filled from them.
    """
    settings = {"prefetch": True, "warm_start": state is not None, "state_dir": None if state is None else str(state)}
    known = state is not None and any(state.glob("routing-*"))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mtpd-")))
        front = stack.enter_context(scripted_front(directory, model, widen=True, **settings))
        address = front.start(slots)
        engine = stack.enter_context(engine_of(front, address, model, 2))
        engine.stream.join()
        if known:
            front.await_fact("resident", lambda n: n >= slots - 8)
            front.await_fact("warm", lambda share: share == 1.0)
        yield engine
        engine.stream.report()
        front.send(Stop(5.0))
        assert front.process is not None and front.process.wait(30) == 0


def decode(engine: Engine, text: Sequence[int], count: int, seed: int) -> tuple[list[int], list[Token]]:
    """`count` forwards of one token: the text's, then sampled ones."""
    trunk, stream = engine.loaded.trunk, engine.stream
    cache, key = trunk.make_cache(), mx.random.key(seed)
    ids, counts, following = [], [], 0
    for i in range(count):
        ids.append(text[i] if i < len(text) else following)
        before = stream.stats.hits, stream.stats.misses
        stream.announce(ids[-1:])
        with stream.forward(ids[-1:], DECODE):
            logits = trunk.logits(trunk.hidden(mx.array([ids[-1:]]), cache).post)
        key, draw = mx.random.split(key)
        following = int(mx.random.categorical(logits[0, -1], key=draw))
        stream.settle()
        hits, misses = stream.stats.hits - before[0], stream.stats.misses - before[1]
        counts.append(Token(hits, hits + misses))
    return ids, counts


def rates(runs: Sequence[Sequence[Token]]) -> list[float]:
    """Of each token, the hit rate over all texts."""
    return [sum(t.hits for t in at) / sum(t.requests for t in at) for at in zip(*runs, strict=True)]


def ready(curve: Sequence[float], steady: float) -> int:
    """How many tokens come before the first window that is at 90 % of the steady rate."""
    means = [sum(curve[i : i + WINDOW]) / WINDOW for i in range(len(curve) - WINDOW + 1)]
    return next((i for i, mean in enumerate(means) if mean >= READY * steady), len(curve))


def measure(model: Path, share: int, texts: Sequence[Sequence[int]], learn: int, tokens: int) -> Curves:
    """The first `learn` texts make the statistics, the others are measured."""
    slots = round(_experts_of(model) * share / 100)
    empty, warm = [], []
    with tempfile.TemporaryDirectory() as state:
        with started(model, slots, Path(state)) as engine:
            for i, text in enumerate(texts[:learn]):
                decode(engine, text, tokens, seed=i)
        statistics = {file.name: file.read_bytes() for file in Path(state).iterdir()}
        for i, text in enumerate(texts[learn:], start=learn):
            with started(model, slots, None) as engine:
                said, counts = decode(engine, text, tokens, seed=i)
            empty.append(counts)
            for name, content in statistics.items():  # not what the text before has added
                (Path(state) / name).write_bytes(content)
            with started(model, slots, Path(state)) as engine:
                again, counts = decode(engine, text, tokens, seed=i)
            warm.append(counts)
            assert again == said, "a warm start changed the text"
    curves = rates(empty), rates(warm)
    half = tokens // 2
    steady = sum(curves[0][-half:] + curves[1][-half:]) / (2 * half)
    return Curves(share, steady, *curves, *(ready(curve, steady) for curve in curves))


def _experts_of(model: Path) -> int:
    """How many there are in all layers, the head's included."""
    return sum(y.experts for y in open_source(model, widen=True).geometry.layers)


def show(found: Curves) -> None:
    print(f"pool {found.share} %: steady {found.steady:.1%}, 90 % of it {READY * found.steady:.1%}")
    points = [*range(8), *range(8, len(found.empty), 8)]
    lines = [[f"{i + 1}", f"{found.empty[i]:.1%}", f"{found.warm[i]:.1%}"] for i in points]
    print(table(["token", "empty pool", "warm start"], lines))
    verdict = "met" if found.met else "MISSED"
    print(
        f"tokens before 90 %: {found.empty_ready} empty, {found.warm_ready} warm; at most half: {verdict}\n", flush=True
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--share", type=int, action="append", help="pool in %% of all experts; repeat it (25 and 40)")
    parser.add_argument("--learn", type=int, default=4, help="texts that make the statistics (4)")
    parser.add_argument("--texts", type=int, default=6, help="texts that are measured (6)")
    parser.add_argument("--tokens", type=int, default=64, help="of each text (64)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead")
    options = parser.parse_args(argv)
    if options.learn + options.texts > len(PROMPTS) or min(options.learn, options.texts) < 1:
        parser.error(f"there are {len(PROMPTS)} texts for --learn and --texts together, one at least for each")
    model = resolve_model(options.model)
    vocabulary = load_vocabulary(model, json.loads((model / "config.json").read_text()))
    texts = [vocabulary.encode(text, raw=True, system=None) for text in PROMPTS[: options.learn + options.texts]]
    found = []
    for share in options.share or (25, 40):
        found.append(measure(model, share, texts, options.learn, options.tokens))
        if not options.json:
            show(found[-1])
    if options.json:
        print(json.dumps([asdict(curves) | {"met": curves.met} for curves in found]))
    return 0 if all(curves.met for curves in found) else 1


if __name__ == "__main__":
    sys.exit(main())
