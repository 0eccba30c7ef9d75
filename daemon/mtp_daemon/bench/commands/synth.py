"""`mtp-bench synth DIR`: a synthetic checkpoint; says what it wrote."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from mtp_daemon.bench.routing_plan import Plan, random_plan, trace_plan
from mtp_daemon.bench.synth import Shape, write
from mtp_daemon.bench.word_tokenizer import write_word_tokenizer
from mtp_daemon.errors import UserError
from mtp_daemon.sizes import parse_pool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Shape()
    parser.add_argument("directory", type=Path, help="where to write it; must not exist")
    parser.add_argument("--family", default=default.family, choices=("qwen3_moe", "qwen3_next"))
    parser.add_argument("--size", help="bytes of experts, such as 4GiB: sets the number of layers")
    for name in ("layers", "experts", "top_k", "hidden", "inner", "tokens", "bits", "group"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    parser.add_argument(
        "--routing",
        default="random",
        help="a recorded routing trace (CSV) to follow, or 'random': uniform, which says nothing about caching",
    )
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    names = ("family", "layers", "experts", "top_k", "hidden", "inner", "tokens", "bits", "group")
    shape = Shape(**{name: getattr(args, name) for name in names})
    if args.size is not None:
        wanted = parse_pool(args.size).nbytes
        if wanted is None:
            raise UserError(f"--size is a number of bytes such as 4GiB, not {args.size!r}")
        layers = max(4, wanted // (shape.expert_bytes * shape.experts))
        shape = replace(shape, layers=layers)
    write(args.directory, shape, _plan(args, shape), args.routing, args.seed, _progress, write_word_tokenizer)
    print(
        f"{args.directory}: synthetic {shape.family}, {shape.layers} layers x {shape.experts} experts, "
        f"top-{shape.top_k}, {shape.expert_bytes / 1e6:.2f} MB each, {shape.total_expert_bytes / 1e6:.0f} MB; "
        f"routing: {args.routing}"
    )
    return 0


def _plan(args: argparse.Namespace, shape: Shape) -> Plan:
    if args.routing == "random":
        return random_plan(shape.layers, shape.tokens, shape.experts, shape.top_k, args.seed)
    path = Path(args.routing)
    if not path.is_file():
        raise UserError(f"there is no routing trace {path}; give a CSV file, or --routing random")
    return trace_plan(path, shape.layers, shape.tokens, shape.experts, shape.top_k)


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rlayer {done} of {total}", end=end, file=sys.stderr, flush=True)
