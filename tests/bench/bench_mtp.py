"""What MTP rounds cost and yield, all experts resident: `python tests/bench/bench_mtp.py MODEL [--prompts FILE]`.

MODEL: a plain checkpoint or a packed store, with a head. Prints, measured in turn in one run:

- tokens a second: mlx-lm's `generate_step`, plain rounds (pipelined), chains of depth 1 to 3;
- tokens a round and acceptance by position for each;
- commit and rollback as a share of a round at depth 3. The caches are evaluated inside the measured part, so the share
  holds what they cost, not what it takes to write it down lazily;
- the cost of a verify of 2, 3 and 4 positions in forwards of one;
- with --text: how often the head's best is the model's own choice along that text, to hold against what training
  measured (TRAINING.json beside the model).
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mtp_daemon.engine.decode.rollback import Snapshot
from mtp_daemon.engine.decode.target import Target
from mtp_loader.store.resolve import resolve_model
from support.decoding import decoder
from support.resident import resident_target


def plain_mlx_lm(on: Target, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """Ids and tokens a second after the first."""
    ids, start = [], 0.0
    for token, _ in generate_step(mx.array(prompt), on.trunk.model, max_tokens=tokens):
        ids.append(int(token))
        start = start or time.perf_counter()
    return ids, (tokens - 1) / (time.perf_counter() - start)


def rounds(on: Target, prompt: list[int], tokens: int, depth: int) -> tuple[list[int], float, dict[str, Any]]:
    decoding = decoder(on, prompt, depth=depth)
    ids = list(decoding.round(tokens).ids)
    first, start = len(ids), time.perf_counter()
    while len(ids) < tokens:
        ids += decoding.round(tokens - len(ids)).ids
    return ids, (tokens - first) / (time.perf_counter() - start), decoding.stats()


def commit_share(on: Target, prompt: list[int], tokens: int) -> float:
    """Share of round time at depth 3 that goes into snapshots and commits, caches evaluated."""
    spent = 0.0
    plain_commit, plain_init = Snapshot.commit, Snapshot.__init__

    def commit(self: Snapshot, *args: Any, **kwargs: Any) -> None:
        nonlocal spent
        start = time.perf_counter()
        plain_commit(self, *args, **kwargs)
        mx.eval([c.state for c in decoding._state.caches])
        spent += time.perf_counter() - start

    def begin(self: Snapshot, *args: Any, **kwargs: Any) -> None:
        nonlocal spent
        start = time.perf_counter()
        plain_init(self, *args, **kwargs)
        spent += time.perf_counter() - start

    Snapshot.commit, Snapshot.__init__ = commit, begin  # type: ignore[method-assign]
    try:
        decoding = decoder(on, prompt, depth=3)
        start, left = time.perf_counter(), tokens
        while left > 0:
            left -= len(decoding.round(left).ids)
        return spent / (time.perf_counter() - start)
    finally:
        Snapshot.commit, Snapshot.__init__ = plain_commit, plain_init  # type: ignore[method-assign]


def verify_costs(on: Target, prompt: list[int]) -> list[float]:
    """Forwards of 2, 3 and 4 positions, logits included, in forwards of one."""
    state = decoder(on, prompt, depth=3)._state
    medians = []
    for positions in (1, 2, 3, 4):
        taken = []
        for _ in range(15):
            start = time.perf_counter()
            with Snapshot(state.caches, batch=True, rows=1):
                rows = on.trunk.hidden(mx.array([prompt[:positions]]), state.caches)
                mx.eval(on.trunk.logits(rows.post))
            taken.append(time.perf_counter() - start)
        medians.append(statistics.median(taken))
    return [m / medians[0] for m in medians[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=resolve_model, nargs="?", default=resolve_model("demo"), help="default: demo")
    parser.add_argument("--prompts", type=Path, help="JSON list of texts; default: random ids")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--count", type=int, default=4, help="prompts measured")
    parser.add_argument("--text", type=Path, help="held-out text to measure agreement on")
    options = parser.parse_args()
    on = resident_target(options.model)
    if options.text is not None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
        share = agreement(on, tokenizer.encode(options.text.read_text()).ids)
        print(f"the head's best is the model's own choice at {share:.1%} of positions of {options.text.name}")
    prompts = _prompts(options, on)
    speeds: dict[str, list[float]] = {}
    yields: dict[int, list[dict[str, Any]]] = {1: [], 2: [], 3: []}
    for prompt in prompts:
        reference, speed = plain_mlx_lm(on, prompt, options.tokens)
        speeds.setdefault("mlx-lm", []).append(speed)
        for depth in range(4):
            ids, speed, stats = rounds(on, prompt, options.tokens, depth)
            assert ids == reference, f"depth {depth} changed the text"
            speeds.setdefault(f"depth {depth}", []).append(speed)
            if depth:
                yields[depth].append(stats)
    for name, values in speeds.items():
        ratio = statistics.median(values) / statistics.median(speeds["mlx-lm"])
        print(f"{name:8}  {statistics.median(values):8.1f} tok/s  {ratio:5.3f} of mlx-lm")
    for depth, runs in yields.items():
        _print_yield(depth, runs)
    share = statistics.median(commit_share(on, p, options.tokens) for p in prompts)
    print(f"commit and rollback at depth 3: {share:.2%} of a round (limit 3 %)")
    print(
        "a verify of 2 / 3 / 4 positions costs",
        " / ".join(f"{c:.2f}" for c in verify_costs(on, prompts[0])),
        "forwards",
    )


def agreement(on: Target, tokens: list[int], block: int = 256, rows: int = 24) -> float:
    """Teacher-forced, on blocks spread evenly over the text, each without context, as training's quick figure is."""
    assert on.head is not None
    last = len(tokens) - block - 1
    starts = [last * i // max(1, rows - 1) for i in range(rows)]
    same = count = 0
    for at in range(0, rows, 8):
        ids = mx.array([tokens[start : start + block + 1] for start in starts[at : at + 8]])
        hidden = on.trunk.hidden(ids[:, :-1], on.trunk.make_cache())
        own = mx.argmax(on.trunk.logits(hidden.post), axis=-1)
        out = on.head.step(on.head.join(on.trunk.embed(ids[:, 1:]), hidden.post), on.head.make_cache())
        drafted = mx.argmax(on.trunk.logits(out), axis=-1)
        same += int((drafted[:, :-1] == own[:, 1:]).sum())
        count += own[:, 1:].size
    return same / count


def _print_yield(depth: int, runs: list[dict[str, Any]]) -> None:
    committed, count = sum(r["committed"] for r in runs), sum(r["rounds"] for r in runs)
    offered = [
        sum(r["offered_by_position"][p] for r in runs if len(r["offered_by_position"]) > p) for p in range(depth)
    ]
    right = [
        sum(r["accepted_by_position"][p] for r in runs if len(r["accepted_by_position"]) > p) for p in range(depth)
    ]
    rates = " / ".join(f"{a / max(o, 1):.1%}" for a, o in zip(right, offered, strict=True))
    print(f"depth {depth}: {committed / count:.2f} tokens a round, acceptance by position {rates}")


def _prompts(options: argparse.Namespace, on: Target) -> list[list[int]]:
    if options.prompts is None:
        keys = mx.random.randint(0, on.trunk.embed(mx.array([[0]])).shape[-1], (options.count, 32))
        return keys.tolist()  # type: ignore[return-value]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in json.loads(options.prompts.read_text())[: options.count]]


if __name__ == "__main__":
    main()
