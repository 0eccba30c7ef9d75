"""Try eviction policies and predictors on recorded routing, beside the best possible (Belady's clairvoyant).

A recording is what `mtpd serve --record-routing FILE` wrote, or a CSV of (token, layer, rank) rows. All of one layer's
experts in one forward are one event. The prompt warms the pool; what is counted is decode. Without --policy every
policy is tried.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from mtp_loader.chart import draw
from mtp_loader.policy.registry import CLAIRVOYANT, NAMES
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.picture import Curves, hit_rates
from mtp_loader.replay.read import read_trace
from mtp_loader.replay.table import PREDICTORS, Plan, Row, as_json, as_text, rows
from mtp_loader.replay.trace import Trace
from mtp_protocol.arguments import real, whole

_EVERY = (*NAMES, CLAIRVOYANT)
_SHARES = (0.1, 0.2, 0.3)
_PICTURED = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `mtp_loader.cli.Command`."""
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="recordings of routing")
    parser.add_argument("--policy", action="append", metavar="NAME", help=f"of {', '.join(_EVERY)}; again for more")
    parser.add_argument(
        "--share", action="append", type=_share, metavar="PERCENT", help="of all experts resident; again for more"
    )
    parser.add_argument(
        "--predictor", action="append", choices=PREDICTORS, help="with which prefetching; again for more (none)"
    )
    parser.add_argument(
        "--reserve", type=whole(0, 1 << 20), metavar="SLOTS", help="free slots a bank (0; 16 to predict)"
    )
    parser.add_argument("--bandwidth", type=real(1e-6, 1e4), default=3.0, metavar="GB/S", help="the disk's (3)")
    parser.add_argument(
        "--compute-us-per-layer", type=real(0, 1e9), default=300.0, metavar="US", help="a forward (300)"
    )
    parser.add_argument("--jobs", type=whole(1, 256), default=os.cpu_count() or 1, metavar="N", help="(one a core)")
    parser.add_argument("--json", action="store_true", help="one JSON list, for scripts")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="hit rate over residency as .svg or .png")


def run(args: argparse.Namespace) -> int:
    """See `mtp_loader.cli.Command`."""
    plan = _plan(args, args.share or _SHARES)
    found: list[Row] = []
    for trace in map(read_trace, args.traces):
        if trace.note and not args.json:
            print(f"{trace.name}: {trace.note}")
        found += rows(trace, plan, args.jobs)
        if args.picture is not None:
            drawn = rows(trace, _plan(args, args.share or _PICTURED), args.jobs)
            where = _picture_path(args.picture, trace, len(args.traces))
            draw(where, hit_rates(trace.model or trace.name, _curves(drawn)))
    print(json.dumps(as_json(found), indent=1) if args.json else as_text(found))
    return 0


def _plan(args: argparse.Namespace, shares: Sequence[float]) -> Plan:
    predictors = args.predictor or ["none"]
    reserve = args.reserve if args.reserve is not None else (16 if any(p != "none" for p in predictors) else 0)
    machine = Machine(args.bandwidth * 1e9, args.compute_us_per_layer * 1e-6)
    return Plan(args.policy or _EVERY, sorted(set(shares)), predictors, machine, reserve)


def _share(text: str) -> float:
    try:
        share = float(text.rstrip("%")) / 100.0
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage") from None
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError("a share is above 0 and at most 100 %")
    return share


def _picture_path(path: Path, trace: Trace, traces: int) -> Path:
    """With several recordings each gets a picture of its own, the recording's name in it."""
    return path if traces == 1 else path.with_name(f"{path.stem}-{trace.name.split('.')[0]}{path.suffix}")


def _curves(found: Sequence[Row]) -> Curves:
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        name = row.policy if row.predictor == "none" else f"{row.policy} + {row.predictor}"
        curves.setdefault(name, []).append((row.share, row.hit_rate))
    return curves
