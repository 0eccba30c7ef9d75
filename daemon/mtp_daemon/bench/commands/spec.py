"""`mtp-bench spec MODEL`: speculation against plain decoding on the same service, in turn; mlx-lm's tokens judge."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtp_daemon.bench.figures import Spread, paired_ratio, table
from mtp_daemon.bench.resident import Resident
from mtp_daemon.bench.serving import Served, Service, serving

PARTS = ("draft", "verify", "sync", "commit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="packed store or mlx-lm checkpoint with an MTP head")
    parser.add_argument("--reference", type=Path, help="the same model for mlx-lm (default: MODEL)")
    parser.add_argument("--pool", default="50%")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--speculation", default="chain", help="way to draft")
    parser.add_argument("--prompt", help="file with token ids as a JSON list (default: 1, 2, 3, …)", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--disk-gbps", type=float, help="slow the loader's reads to so many GB/s")
    parser.add_argument("--dump-ids", action="store_true", help="with --json: the tokens of both sides")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    prompt = json.loads(args.prompt.read_text()) if args.prompt else list(range(1, 33))
    resident = Resident(args.reference or args.model)
    try:
        judge = resident.answer(prompt, args.tokens).ids
    finally:
        resident.close()
    flags = ["--pool", args.pool, "--depth-controller", "constant", "--max-depth", str(max(args.depths))]
    if args.disk_gbps:
        flags += ["--disk-gbps", str(args.disk_gbps)]
    with serving(args.model, *flags) as service:
        runs = measure(args, service, prompt)
    results = [summary(depth, runs[depth], runs[0], judge) for depth in runs]
    if args.dump_ids:
        results[0]["reference_ids"] = judge
    if args.json:
        print(json.dumps(results))
    else:
        _print(results)
    return 0 if all(r["exact_match"] for r in results) else 1


def measure(args: argparse.Namespace, service: Service, prompt: list[int]) -> dict[int, list[Served]]:
    """Every depth in turn, `repeats` times, after one warm-up of each over the full length; depth 0 is plain."""
    depths = [0, *args.depths]
    runs: dict[int, list[Served]] = {depth: [] for depth in depths}
    for repeat in range(args.repeats + 1):
        for depth in depths:
            way = args.speculation if depth else "off"
            served = service.answer(prompt, args.tokens, speculation=way, depth=depth)
            if repeat:
                runs[depth].append(served)
    return runs


def summary(depth: int, runs: list[Served], plain: list[Served], judge: list[int]) -> dict[str, Any]:
    """What one depth gave; `mismatches` counts tokens of all runs that differ from mlx-lm's."""
    mismatches = sum(a != b for r in runs for a, b in zip(r.ids, judge, strict=False))
    mismatches += sum(abs(len(r.ids) - len(judge)) for r in runs)

    def of(read: Callable[[dict[str, Any]], float]) -> Spread:
        return Spread.of([read(r.stats) for r in runs])

    speed = [r.stats["tok_per_s"] for r in runs]
    parts = {part: of(lambda s, part=part: s[f"{part}_s"]).median for part in PARTS}  # type: ignore[misc]
    total = sum(parts.values())
    return {
        "depth": depth,
        "tok_per_s": Spread.of(speed).__dict__,
        "speed_up": paired_ratio(speed, [p.stats["tok_per_s"] for p in plain]).__dict__,
        "exact_match": mismatches == 0,
        "mismatches": mismatches,
        "tokens_per_round": of(lambda s: s["tokens_per_round"]).median,
        "acceptance_by_position": runs[-1].stats["acceptance_by_position"],
        "accepted_lengths": runs[-1].stats["accepted_lengths"],
        "hit_rate": of(lambda s: s["hits"] / max(1, s["hits"] + s["misses"])).median,
        "misses_per_token": of(lambda s: s["misses_per_token"]).median,
        "bytes_read": of(lambda s: s["bytes_read"]).median,
        "stall_s": of(lambda s: s["stall_s"]).median,
        "seconds": parts,
        "tok_per_s_without": {p: len(judge) / (total - t) if total > t else None for p, t in parts.items()},
    }


def _print(results: list[dict[str, Any]]) -> None:
    header = ["depth", "tok/s", "speed-up", "exact", "tokens a round", "acceptance by position", "hit rate",
              "misses a token", "MB read", "stall s", *(f"{p} s" for p in PARTS)]  # fmt: skip
    rows = [
        [
            str(r["depth"]),
            Spread(**r["tok_per_s"]).text(),
            Spread(**r["speed_up"]).text(),
            "yes" if r["exact_match"] else f"NO, {r['mismatches']} differ",
            f"{r['tokens_per_round']:.2f}",
            " ".join(f"{a:.0%}" for a in r["acceptance_by_position"]) or "-",
            f"{r['hit_rate']:.1%}",
            f"{r['misses_per_token']:.2f}",
            f"{r['bytes_read'] / 1e6:.1f}",
            f"{r['stall_s']:.2f}",
            *(f"{r['seconds'][p]:.2f}" for p in PARTS),
        ]
        for r in results
    ]
    print(table(header, rows))
