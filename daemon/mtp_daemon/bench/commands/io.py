"""`mtp-bench io FILE…`: the disk by read size, threads and cache."""

import argparse
import json
from pathlib import Path
from typing import Any

from mtp_daemon.bench.disk import drop_page_cache, read_bandwidth
from mtp_daemon.bench.figures import Spread, table
from mtp_daemon.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="large files on the disk to measure, such as experts-*.bin")
    parser.add_argument("--sizes-kib", type=int, nargs="+", default=[64, 512, 1728, 4096], help="read sizes")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--mb", type=int, default=256, help="megabytes read for each figure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    for path in args.files:
        if not path.is_file():
            raise UserError(f"there is no file {path}")
    results = [
        measure(args, size, threads, direct)
        for direct in (True, False)
        for size in args.sizes_kib
        for threads in args.threads
    ]
    if args.json:
        print(json.dumps(results))
        return 0
    for direct in (True, False):
        print("direct, page cache bypassed" if direct else "cached: page cache dropped before each run, then buffered")
        rows = [
            [f"{size} KiB"] + [r["text"] for r in results if r["direct"] == direct and r["size_kib"] == size]
            for size in args.sizes_kib
        ]
        print(table(["read size, GB/s by threads", *(str(t) for t in args.threads)], rows), end="\n\n")
    best = max((r for r in results if r["direct"]), key=lambda r: r["gb_per_s"])
    print(f"best direct: {best['gb_per_s']:.2f} GB/s with {best['threads']} threads of {best['size_kib']} KiB")
    return 0


def measure(args: argparse.Namespace, size_kib: int, threads: int, direct: bool) -> dict[str, Any]:
    """One cell of the table, repeated."""
    values = []
    for repeat in range(args.repeats):
        if not direct:
            drop_page_cache(args.files)
        rate = read_bandwidth(args.files, size_kib << 10, threads, direct, args.mb * 10**6, seed=repeat)
        values.append(rate / 1e9)
    spread = Spread.of(values)
    return {
        "direct": direct,
        "size_kib": size_kib,
        "threads": threads,
        "gb_per_s": spread.median,
        "low": spread.low,
        "high": spread.high,
        "text": spread.text(),
    }
