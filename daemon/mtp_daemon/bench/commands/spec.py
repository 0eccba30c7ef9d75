"""`mtp-bench spec MODEL`: speculation against plain decoding on the same service, in turn; mlx-lm's tokens judge.

Each depth is warmed over its full length and then measured in turn with plain decoding (depth 0), so that what drifts
with the machine cancels. `exact` compares every token of every run with mlx-lm's own, all experts resident. Hit rates
and loads are of whole answers, prompts included.

  mtp-bench spec demo                                 depths 1 to 3 at a pool of half the experts
  mtp-bench spec DIR --pool 25% --disk-gbps 0.5       on a disk slowed to half a gigabyte a second
  mtp-bench spec DIR --pin-hot 64 --calibrate 256     pins learned on 256 tokens of the same prompt
  mtp-bench spec DIR --margins --verify-bytes         is a difference a near-tie, or a fault?
"""

import argparse
import json
from pathlib import Path
from typing import Any

from mtp_daemon.bench.report import Report, add_output, emit
from mtp_daemon.bench.resident import reference_answer
from mtp_daemon.bench.serving import Service, disk_flags, serving
from mtp_daemon.bench.spec_runs import Measured, Plan, hottest, measure, verified
from mtp_daemon.bench.spec_summary import margins, summary
from mtp_daemon.bench.spec_text import chart, text
from mtp_daemon.bench.steps import Steps
from mtp_daemon.errors import UserError
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.arguments import real, whole
from mtp_protocol.sampling import Sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="demo", help="packed store or checkpoint with a head (demo)")
    parser.add_argument("--reference", help="the same model for mlx-lm (default: MODEL)")
    parser.add_argument("--pool", default="50%", help="as for mtpd serve (50%%)")
    parser.add_argument(
        "--depths", type=whole(1, 32), nargs="+", default=[1, 2, 3], help="tokens drafted a round (1 2 3)"
    )
    parser.add_argument("--speculation", default="chain", help="way to draft (chain)")
    parser.add_argument("--prompt", help="file with token ids as a JSON list (default: 1, 2, 3, …)", type=Path)
    parser.add_argument("--tokens", type=whole(2, 1 << 20), default=128, help="decoded in each run (128)")
    parser.add_argument("--repeats", type=whole(1, 1000), default=3, help="runs of each depth after the warm-up (3)")
    parser.add_argument("--disk-gbps", type=real(1e-6, 1e4), metavar="X", help="slow the loader's reads to X GB/s")
    parser.add_argument("--serve-flag", action="append", default=[], help="one more flag for mtpd serve; repeat it")
    parser.add_argument(
        "--pin-hot", type=whole(0, 1 << 16), default=0, metavar="N", help="pin the N experts used most …"
    )
    parser.add_argument(
        "--calibrate", type=whole(1, 1 << 20), default=128, metavar="TOKENS", help="… by so many tokens"
    )
    parser.add_argument("--margins", action="store_true", help="the gap between the best two tokens at each step")
    parser.add_argument("--dump-ids", action="store_true", help="with --json: every run's tokens, and mlx-lm's")
    parser.add_argument("--verify-bytes", action="store_true", help="then hash every slot at use, one answer a depth")
    add_output(parser, "acceptance by position")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where any token differs from mlx-lm's."""
    model = resolve_model(args.model)
    prompt = _prompt(args.prompt) if args.prompt else list(range(1, 33))
    plan = Plan(prompt, args.tokens, args.speculation, [0, *args.depths], args.repeats)
    steps = Steps(len(plan.depths) * (plan.repeats + 1) + 1 + bool(args.pin_hot) + args.verify_bytes)
    steps.begin("mlx-lm, all resident")
    judge = reference_answer(resolve_model(args.reference or args.model), prompt, args.tokens).ids
    flags = ["--pool", args.pool, *disk_flags(args.disk_gbps), *args.serve_flag]
    pins = None
    if args.pin_hot:
        steps.begin("calibration")
        pins = hottest(model, flags, prompt, args.calibrate, args.pin_hot)
    deepest = ["--depth-controller", "constant", "--max-depth", str(max(args.depths))]
    with serving(model, *flags, *deepest) as service:
        pinned = None if pins is None else int(service.client.pin(pins)["pinned"])
        measured = measure(plan, service, steps)
        gaps = _margins(args, plan, service)
    slots, differing = None, 0
    if args.verify_bytes:
        steps.begin("every slot hashed")
        slots, differing = verified(model, [*flags, *deepest], plan, judge)
    steps.end()
    results: dict[str, Any] = {
        "depths": [summary(depth, measured.runs[depth], measured.runs[0], judge) for depth in plan.depths],
        "memory": measured.memory,
        "pinned": pinned,
        "calibrated_tokens": args.calibrate if pins is not None else None,
        "margins": gaps,
        "slots_verified": slots,
        "verify_mismatches": differing,
        **(_ids(measured, judge) if args.dump_ids else {}),
    }
    emit(args, "spec", Report(results, text(results), {"acceptance": chart(results["depths"])}))
    return 0 if differing == 0 and all(r["exact_match"] for r in results["depths"]) else 1


def _prompt(path: Path) -> list[int]:
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the prompt in {path}: {error}") from error
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        raise UserError(f"{path} must hold a JSON list of token ids, such as [1, 2, 3]")
    return ids


def _margins(args: argparse.Namespace, plan: Plan, service: Service) -> list[float]:
    if not args.margins:
        return []
    return margins(service.answer(plan.prompt, plan.tokens, sampling=Sampling(logprobs=2)).logprobs)


def _ids(measured: Measured, judge: list[int]) -> dict[str, Any]:
    runs = {str(depth): [r.served.ids for r in runs] for depth, runs in measured.runs.items()}
    return {"ids": runs, "reference_ids": judge}
