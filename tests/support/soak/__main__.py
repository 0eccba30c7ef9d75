"""`python -m support.soak`: a soak from the command line. Exit code 1 on any fault, which is named."""

import argparse
import sys
from pathlib import Path

from mtp_loader.store.resolve import resolve_model
from support.soak.pauses import LONGEST_S
from support.soak.run import Plan, Report, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--model", default="demo", help="directory, id or demo (default demo)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed asks and does the same things")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--pool-share", type=float, default=0.4, help="of all experts' bytes (default 0.4)")
    parser.add_argument("--kill-every", type=float, default=4.5, help="seconds between kills, on average (default 4.5)")
    parser.add_argument("--act-every", type=float, default=8.0, help="seconds between stops, sizes … (default 8)")
    parser.add_argument("--busy-machine", action="store_true", help=f"pauses of more than {LONGEST_S:g} s are no fault")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder for soak.svg and soak.json")
    args = parser.parse_args()
    plan = Plan(
        resolve_model(args.model).resolve(), args.minutes, args.seed, args.out, args.clients, args.pool_share,
        kill_s=args.kill_every, act_s=args.act_every, pauses_count=not args.busy_machine,
    )  # fmt: skip
    report = soak(plan, lambda text: print(text, flush=True))
    print(describe(report))
    print(f"picture and figures: {args.out}/soak.svg, {args.out}/soak.json")
    return 0 if report.fault is None else 1


def describe(report: Report) -> str:
    """The report for a person."""
    rows = [
        ("time", f"{report.seconds / 60:.1f} minutes, {report.tokens} tokens, {report.checks} checks while idle"),
        ("answers", ", ".join(f"{count} {kind}" for kind, count in sorted(report.answers.items()))),
        ("trouble", ", ".join(f"{count} {act}" for act, count in sorted(report.acts.items()))),
        ("kills", f"{report.kills} processes killed with SIGKILL"),
        ("pause", f"{report.longest_pause_s:.1f} s without a token at most, {len(report.long_pauses)} too long"),
        ("hit rate", "-" if report.hit_rate is None else f"{report.hit_rate:.1%} in the last service's life"),
    ]
    for g in report.growth:
        text = f"{g.role} {g.rss / 1e6:.1f} MB, {g.per_hour / 1e6:+.2f} ± {g.error_per_hour / 1e6:.2f} MB an hour"
        rows.append(("memory", f"{text}, {g.change / 1e6:+.2f} MB over {g.seconds / 60:.1f} calm minutes"))
    rows += [("steady", f"{role}: {text} while idle") for role, text in report.steady.items()]
    rows.append(("fault", report.fault or "none"))
    return "\n".join(f"{name:>9}  {text}" for name, text in rows)


if __name__ == "__main__":
    sys.exit(main())
