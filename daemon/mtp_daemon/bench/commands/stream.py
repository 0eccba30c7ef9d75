"""`mtp-bench stream MODEL`: streamed decoding by pool share, beside mlx-lm resident and the bound."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_daemon.bench.disk import drop_page_cache, read_bandwidth
from mtp_daemon.bench.figures import Spread, paired_ratio, table
from mtp_daemon.bench.resident import Resident
from mtp_daemon.bench.serving import Served, serving
from mtp_loader.store import open_source


@dataclass(frozen=True)
class Cell:
    """One pool share and cache state: paired runs of the service and of mlx-lm resident."""

    share: int
    cache: str
    ratio: Spread
    prefill_ratio: Spread
    tok_per_s: Spread
    resident_tok_per_s: Spread
    of_bound: float
    hit_rate: float
    mb_per_token: float
    stall_ms_per_token: float
    exact: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="packed store or mlx-lm checkpoint")
    parser.add_argument("--reference", type=Path, help="the same model for mlx-lm (default: MODEL)")
    parser.add_argument("--shares", type=int, nargs="+", default=[100, 50, 25, 10], help="pool in %% of all experts")
    parser.add_argument("--cache", nargs="+", default=["warm", "cold"], choices=("warm", "cold"))
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--disk-gbps", type=float, help="slow the loader's reads to so many GB/s")
    parser.add_argument("--serve-flag", action="append", default=[], help="one more flag for mtpd serve; repeat it")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    source = open_source(args.model, widen=False)
    record = max(bank.source_bytes for bank in source.geometry.banks)
    if args.disk_gbps:
        bandwidth = args.disk_gbps * 1e9
    else:
        bandwidth = read_bandwidth(source.files, record, 8, direct=True, total_bytes=512 << 20)
    resident = Resident(args.reference or args.model)
    try:
        cells = [
            measure(args, source.files, resident, share, cache, bandwidth)
            for share in args.shares
            for cache in args.cache
        ]
    finally:
        resident.close()
    if args.json:
        print(json.dumps([_plain(c) for c in cells]))
    else:
        print(f"disk: {bandwidth / 1e9:.2f} GB/s; every ratio is paired, run by run; median (min-max)")
        print(table(HEADER, [_row(c) for c in cells]))
    return 0 if all(c.exact for c in cells) else 1


def measure(
    args: argparse.Namespace, files: Sequence[Path], resident: Resident, share: int, cache: str, bandwidth: float
) -> Cell:
    """Warm both sides over the full length once, then measure them in turn."""
    flags = ["--pool", f"{share}%", "--direct", "on" if cache == "cold" else "off", *args.serve_flag]
    if args.disk_gbps:
        flags += ["--disk-gbps", str(args.disk_gbps)]
    prompt = list(range(1, args.prompt_tokens + 1))
    served, reference = [], []
    with serving(args.model, *flags) as service:
        for repeat in range(args.repeats + 1):
            if cache == "cold":
                drop_page_cache(files)
            ours, theirs = service.answer(prompt, args.tokens), resident.answer(prompt, args.tokens)
            if repeat > 0:
                served.append(ours)
                reference.append(theirs)
    compute_s = Spread.of([r.decode_s / (len(r.ids) - 1) for r in reference]).median
    bytes_per_token = Spread.of([_decode_bytes(s) for s in served]).median
    bound = 1 / max(compute_s, bytes_per_token / bandwidth)
    speeds = [s.stats["tok_per_s"] for s in served]
    return Cell(
        share=share,
        cache=cache,
        ratio=paired_ratio(speeds, [r.tok_per_s for r in reference]),
        prefill_ratio=paired_ratio([r.prefill_s for r in reference], [s.stats["ttft_s"] for s in served]),
        tok_per_s=Spread.of(speeds),
        resident_tok_per_s=Spread.of([r.tok_per_s for r in reference]),
        of_bound=Spread.of(speeds).median / bound,
        hit_rate=Spread.of([_hit_rate(s) for s in served]).median,
        mb_per_token=bytes_per_token / 1e6,
        stall_ms_per_token=Spread.of([s.stats["decode_stall_s"] / len(s.ids) * 1e3 for s in served]).median,
        exact=all(s.ids == r.ids for s, r in zip(served, reference, strict=True)),
    )


def _decode_bytes(served: Served) -> float:
    return float(served.stats["decode_bytes_read"]) / max(1, len(served.ids) - 1)


def _hit_rate(served: Served) -> float:
    asked = served.stats["hits"] + served.stats["misses"]
    return float(served.stats["hits"]) / asked if asked else 1.0


HEADER = [
    "pool, cache", "of resident", "of bound", "tok/s", "resident tok/s", "prefill of resident", "hit rate",
    "MB a token", "stall ms a token", "exact",
]  # fmt: skip


def _row(cell: Cell) -> list[str]:
    return [
        f"{cell.share} %, {cell.cache}",
        cell.ratio.text(3),
        f"{cell.of_bound:.2f}",
        cell.tok_per_s.text(),
        cell.resident_tok_per_s.text(),
        cell.prefill_ratio.text(2),
        f"{cell.hit_rate:.1%}",
        f"{cell.mb_per_token:.1f}",
        f"{cell.stall_ms_per_token:.1f}",
        "yes" if cell.exact else "NO",
    ]


def _plain(cell: Cell) -> dict[str, Any]:
    return {k: v.__dict__ if isinstance(v, Spread) else v for k, v in cell.__dict__.items()}
