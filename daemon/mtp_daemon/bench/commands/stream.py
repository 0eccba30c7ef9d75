"""`mtp-bench stream MODEL`: streamed decoding by pool share, beside mlx-lm resident and the bound.

Each cell runs the service and mlx-lm with everything resident in turn (A B A B …) on the same checkpoint and tokens,
after one warm-up of both over the full length; ratios are paired, run by run. The bound is what perfect overlap would
give: 1 / max(a token's compute with everything resident, its bytes / what plain threads read in parallel).

  warm    the loader reads through the page cache, which holds the files
  cold    the loader bypasses the page cache (O_DIRECT, F_NOCACHE), and it is dropped before each run
  slowed  page cache warm, the reader slowed by a token bucket: --disk-gbps, or --disk-ratio, which chooses the speed at
          which a token's reads take so many times its compute at that share: 0.1 1 4 is where Macs are

  mtp-bench stream DIR                                      the whole table
  mtp-bench stream DIR --shares 50 25 --disk-ratio 0.1 1 4  what the disk's speed makes of it
  mtp-bench stream DIR --shares 25 --prompt-tokens 512      prefill
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtp_daemon.bench.disk import drop_page_cache, read_pieces
from mtp_daemon.bench.figures import Spread
from mtp_daemon.bench.footprint import Footprint
from mtp_daemon.bench.peers import FORMAT, read_peers
from mtp_daemon.bench.report import Report, add_output, emit
from mtp_daemon.bench.resident import Answer, Resident
from mtp_daemon.bench.serving import CHILDREN, Served, Service, disk_flags, serving
from mtp_daemon.bench.steps import Steps
from mtp_daemon.bench.stream_cells import Cell, Memory, Where, cell, gbps_for, speed_chart, stall_chart, text
from mtp_daemon.errors import UserError
from mtp_loader.store import open_source
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.arguments import real, whole

_BANDWIDTH_BYTES = 512 << 20
_READERS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = FORMAT
    parser.add_argument("model", help="packed store or mlx-lm checkpoint; demo")
    parser.add_argument("--reference", help="the same model for mlx-lm (default: MODEL)")
    parser.add_argument(
        "--shares", type=whole(1, 100), nargs="+", default=[100, 50, 25, 10], help="pool, %% of experts"
    )
    parser.add_argument("--cache", nargs="*", default=["warm", "cold"], choices=("warm", "cold"), help="(both)")
    parser.add_argument(
        "--disk-gbps", type=real(1e-6, 1e4), nargs="+", default=[], metavar="X", help="slowed to X GB/s"
    )
    parser.add_argument(
        "--disk-ratio", type=real(1e-3, 1e3), nargs="+", default=[], metavar="R", help="reads R x compute"
    )
    parser.add_argument("--prompt-tokens", type=whole(1, 1 << 20), default=32)
    parser.add_argument("--tokens", type=whole(2, 1 << 20), default=48, help="decoded in each run (48)")
    parser.add_argument("--repeats", type=whole(1, 1000), default=3, help="pairs of runs a cell, after the warm-up (3)")
    parser.add_argument("--serve-flag", action="append", default=[], help="one more flag for mtpd serve; repeat it")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="other programs' lines for the picture, see below")
    add_output(parser, "tokens a second over pool share; of slowed disks also stall over disk speed")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where any token differs from mlx-lm's."""
    if args.disk_ratio and not args.cache:
        raise UserError("--disk-ratio needs a cell on the machine's own disk to know a token's bytes: --cache warm")
    if args.peers:
        read_peers(args.peers, 1.0)  # a wrong file is told now, not after the measurement
    bench = _Bench.open(args)
    try:
        cells = [c for share in args.shares for c in bench.cells(share)]
    finally:
        bench.steps.end()
        bench.resident.close()
    resident = Spread.of([c.resident_tok_per_s.median for c in cells]).median
    charts = {"speed": speed_chart(cells, read_peers(args.peers, resident) if args.peers else {})}
    if any(c.where.gbps is not None for c in cells):
        charts["stall"] = stall_chart(cells)
    rates = ", ".join(f"{name} {rate / 1e9:.2f}" for name, rate in bench.bandwidth.items())
    note = f"plain threads read, GB/s: {rates}; ratios are paired, run by run; median (min-max)"
    if args.disk_ratio and (
        idle := sorted({c.where.share for c in cells} - {c.where.share for c in cells if c.where.ratio})
    ):
        note += f"\nno slowed disk where nothing is read: {', '.join(f'{share} %' for share in idle)}"
    results = {"bandwidth": bench.bandwidth, "cells": cells}
    emit(args, "stream", Report(results, f"{note}\n{text(cells)}", charts))
    return 0 if all(c.exact for c in cells) else 1


@dataclass(frozen=True)
class _Bench:
    """What all cells share. `bandwidth`: bytes a second by page cache, warm or cold."""

    args: argparse.Namespace
    model: Path
    files: Sequence[Path]
    resident: Resident
    bandwidth: dict[str, float]
    steps: Steps

    @classmethod
    def open(cls, args: argparse.Namespace) -> "_Bench":
        model = resolve_model(args.model)
        source = open_source(model, widen=False)
        record = max(bank.source_bytes for bank in source.geometry.banks)
        total = min(_BANDWIDTH_BYTES, sum(path.stat().st_size for path in source.files))
        bandwidth = {}
        if "cold" in args.cache:
            bandwidth["cold"] = read_pieces(source.files, record, _READERS, True, total).bytes_per_s
        # Twice: the first brings the files into the page cache.
        buffered = [read_pieces(source.files, record, _READERS, False, total) for _ in range(2)]
        bandwidth["warm"] = buffered[1].bytes_per_s
        places = len(args.cache) + len(args.disk_gbps) + len(args.disk_ratio)
        steps = Steps(len(args.shares) * places * (args.repeats + 1))
        resident = Resident(resolve_model(args.reference or args.model))
        return cls(args, model, source.files, resident, bandwidth, steps)

    def cells(self, share: int) -> Iterator[Cell]:
        """The machine's own disk first: it says how many bytes a token takes."""
        last: Cell | None = None
        for cache in self.args.cache:
            last = self._cell(Where(share, cache))
            yield last
        for gbps in self.args.disk_gbps:
            yield self._cell(Where(share, "slowed", gbps))
        for ratio in self.args.disk_ratio:
            if last is not None and last.bytes_per_token > 0:  # where nothing is read no disk is slow
                gbps = gbps_for(ratio, last.compute_s, last.bytes_per_token)
                yield self._cell(Where(share, "slowed", gbps, ratio))

    def _cell(self, where: Where) -> Cell:
        direct = "on" if where.cache == "cold" else "off"
        flags = ["--pool", f"{where.share}%", "--direct", direct, *disk_flags(where.gbps), *self.args.serve_flag]
        served, reference = [], []
        with serving(self.model, *flags) as service:
            pids = service.pids()
            with Footprint({role: pids[role] for role in CHILDREN}) as footprint:
                self._pair(where, service, "warm-up")
            for repeat in range(self.args.repeats):
                ours, theirs = self._pair(where, service, f"pair {repeat + 1}")
                served.append(ours)
                reference.append(theirs)
            status = service.client.status()
        known = status["pool"]["bytes"] + status["engine_facts"]["dense_bytes"]
        memory = Memory(footprint.peak_sum, footprint.peak_sum - known)
        bandwidth = self.bandwidth["cold" if where.cache == "cold" else "warm"]
        if where.gbps is not None:
            bandwidth = min(bandwidth, where.gbps * 1e9)
        return cell(where, served, reference, bandwidth, memory)

    def _pair(self, where: Where, service: Service, what: str) -> tuple[Served, Answer]:
        self.steps.begin(f"{where.name}: {what}")
        if where.cache == "cold":
            drop_page_cache(self.files)
        prompt = service.prompt(self.args.prompt_tokens)
        return service.answer(prompt, self.args.tokens), self.resident.answer(prompt, self.args.tokens)
