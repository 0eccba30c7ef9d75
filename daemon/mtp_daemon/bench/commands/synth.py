"""`mtp-bench synth DIR`: a synthetic checkpoint of any size with a real shape; says what it wrote.

Its router follows a plan, so that hit rates mean something: recorded routing (what `mtpd serve --record-routing FILE`
wrote, or a CSV of token, layer, rank rows), the demo model's own while it writes text, or uniform random, which says
nothing about caching and is there to compare with figures that were taken on it. Greedy decoding from token t walks the
plan from its row t on. The text is no text; the config says that the model is synthetic, and how it was made.

  mtp-bench synth /data/synthetic --size 4GiB --routing demo
  mtp-bench synth /data/synthetic --family qwen3_next --layers 48 --experts 512 --top-k 10 --routing FILE
  mtp-loader pack /data/synthetic /data/packed
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from mtp_daemon.bench.recorded import read_recorded
from mtp_daemon.bench.report import Report, add_output, emit
from mtp_daemon.bench.routing_plan import Plan, demo_routing, random_plan, recorded_plan
from mtp_daemon.bench.steps import Steps
from mtp_daemon.bench.synth import Shape, write
from mtp_daemon.bench.word_tokenizer import write_word_tokenizer
from mtp_daemon.errors import UserError
from mtp_daemon.sizes import parse_pool
from mtp_protocol.arguments import whole

# Each with the least and the most that make sense.
_SIZES = (
    ("layers", 1, 1000),
    ("experts", 1, 4096),
    ("top_k", 1, 256),
    ("hidden", 1, 1 << 16),
    ("inner", 1, 1 << 16),
    ("tokens", 1, 1 << 16),
    ("bits", 0, 8),
    ("group", 1, 1 << 16),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Shape()
    parser.add_argument("directory", type=Path, help="where to write it; must not exist")
    parser.add_argument("--family", default=default.family, choices=("qwen3_moe", "qwen3_next"))
    parser.add_argument("--size", help="bytes of experts, such as 4GiB: sets the number of layers")
    for name, low, high in _SIZES:
        kind = whole(low, high)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(default, name), metavar="N")
    parser.add_argument(
        "--routing",
        default="random",
        metavar="FILE|demo|random",
        help="recorded routing to follow, the demo model's, or uniform random (random)",
    )
    parser.add_argument("--seed", type=whole(0, 1 << 62), default=0)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    shape = Shape(family=args.family, **{name: getattr(args, name) for name, _, _ in _SIZES})
    if args.size is not None:
        wanted = parse_pool(args.size).nbytes
        if wanted is None:
            raise UserError(f"--size is a number of bytes such as 4GiB, not {args.size!r}")
        layers = max(4, wanted // (shape.expert_bytes * shape.experts))
        shape = replace(shape, layers=layers)
    plan = _plan(args, shape)
    steps = Steps(shape.layers)
    write(args.directory, shape, plan, args.routing, args.seed, lambda n, _: steps.begin(f"{n} layers written"),
          write_word_tokenizer)  # fmt: skip
    steps.end()
    text = (
        f"{args.directory}: synthetic {shape.family}, {shape.layers} layers x {shape.experts} experts, "
        f"top-{shape.top_k}, {shape.expert_bytes / 1e6:.2f} MB each, {shape.total_expert_bytes / 1e6:.0f} MB; "
        f"routing: {args.routing}"
    )
    emit(args, "synth", Report({"shape": shape, "expert_bytes": shape.total_expert_bytes}, text))
    return 0


def _plan(args: argparse.Namespace, shape: Shape) -> Plan:
    if args.routing == "random":
        return random_plan(shape.layers, shape.tokens, shape.experts, shape.top_k, args.seed)
    if args.routing == "demo":
        print("the demo model writes, its routing is recorded", file=sys.stderr)
        recorded = demo_routing(shape.tokens)
    elif Path(args.routing).is_file():
        recorded = read_recorded(Path(args.routing))
    else:
        raise UserError(f"there is no routing trace {args.routing}; give a recording, or --routing demo or random")
    return recorded_plan(recorded, shape.layers, shape.tokens, shape.experts, shape.top_k)
