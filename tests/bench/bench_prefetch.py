"""Prefetching on and off, on the running service: `python tests/bench/bench_prefetch.py [--case NAME …]`.

For each case (a pool share, a disk, honest or lying hints) two services of the demo model run side by side, one with
`prefetch` and one without. Each prompt goes to both in turn, which one is first changing from prompt to prompt; the
answers are sampled with a seed, so both decode the same tokens, and that they do is checked. Printed are tokens a
second, the paired ratio (median, minimum, maximum), and what the loader's own books say of the measured part: misses
covered, reads wasted for each useful one, misses never predicted, predicted too late and evicted again.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mtp_client.client import Client
from mtp_daemon.bench.figures import Spread, paired_ratio, table
from mtp_daemon.bench.serving import serving
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.client_messages import Finished, Tokens
from mtp_protocol.sampling import Sampling
from support.prompts import PROMPTS

LIES = Path(__file__).resolve().parents[1] / "support" / "lying_hints"
SEED = 7


@dataclass(frozen=True)
class Case:
    """`disk` are flags of `mtpd serve`; `lies` makes the engine's hints name what its gates like least."""

    pool: str
    disk: tuple[str, ...] = ()
    lies: bool = False


CASES = {
    "slow disk": Case("25%", ("--disk-gbps", "0.02")),
    "latency": Case("25%", ("--delay-ms", "2")),
    "fast disk": Case("25%"),
    "busy disk": Case("25%", ("--disk-gbps", "0.004")),
    "tiny pool": Case("120KiB", ("--disk-gbps", "0.02")),
    "lying hints": Case("25%", ("--disk-gbps", "0.02"), lies=True),
}


@dataclass(frozen=True)
class Answer:
    ids: tuple[int, ...]
    stats: Mapping[str, Any]


def answer(client: Client, prompt: str, tokens: int, seed: int, speculation: str) -> Answer:
    ids: list[int] = []
    sampling = Sampling(temperature=1.0, seed=seed)
    for event in client.generate(prompt, raw=True, max_tokens=tokens, sampling=sampling, speculation=speculation):
        if isinstance(event, Tokens):
            ids += event.ids
        elif isinstance(event, Finished):
            return Answer(tuple(ids), event.stats)
    raise RuntimeError("the answer ended without a word")


def books(client: Client) -> dict[str, float]:
    """The loader's attribution so far."""
    prediction: dict[str, float] = client.status()["experts"]["prediction"]["attribution"]
    return prediction


def measure(case: Case, options: argparse.Namespace) -> list[str]:
    model = resolve_model(options.model)
    flags = ["--pool", case.pool, *case.disk, *options.serve_flag]
    speeds: dict[bool, list[float]] = {True: [], False: []}
    hits: dict[bool, list[float]] = {True: [], False: []}
    stalls: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as stack:
        services = {}
        for on in (True, False):
            os.environ["PYTHONPATH"] = str(LIES) if case.lies and on else ""
            services[on] = stack.enter_context(serving(model, *flags, "--prefetch", str(on).lower())).client
        for i in range(options.warm):
            for client in services.values():
                answer(client, PROMPTS[-1 - i], options.tokens, SEED, options.speculation)
        before = books(services[True])
        for i in range(options.prompts):
            got = {}
            for on in (True, False) if i % 2 else (False, True):
                prompt = PROMPTS[i % len(PROMPTS)]
                got[on] = answer(services[on], prompt, options.tokens, SEED + i, options.speculation)
                speeds[on].append(got[on].stats["tok_per_s"])
                stalls[on].append(1e3 * got[on].stats["decode_stall_s"] / len(got[on].ids))
                hits[on].append(got[on].stats["hits"] / (got[on].stats["hits"] + got[on].stats["misses"]))
            assert got[True].ids == got[False].ids, "prefetching changed the text"
        after = books(services[True])
        status = services[True].status()["experts"]
    if options.verbose:
        print(json.dumps(status, indent=1))
    return [
        f"{Spread.of(speeds[False]).median:.1f}",
        f"{Spread.of(speeds[True]).median:.1f}",
        paired_ratio(speeds[True], speeds[False]).text(3),
        *(f"{Spread.of(stalls[on]).median:.1f}" for on in (False, True)),
        *(f"{Spread.of(hits[on]).median:.1%}" for on in (False, True)),
        *_told({name: after[name] - before.get(name, 0) for name in after if name in COUNTS}),
    ]


COUNTS = ("useful", "late_reads", "wasted", "never_predicted", "late", "evicted_again")


def _told(counts: Mapping[str, float]) -> list[str]:
    if not counts:
        return ["-"] * 5
    misses = counts["never_predicted"] + counts["late"] + counts["evicted_again"]
    asked = max(counts["useful"] + misses, 1)
    return [
        f"{counts['useful'] / asked:.1%}",
        f"{counts['wasted'] / max(counts['useful'] + counts['late_reads'], 1):.2f}",
        *(f"{counts[name] / asked:.1%}" for name in ("never_predicted", "late", "evicted_again")),
    ]


HEADER = [
    "case", "tok/s off", "tok/s on", "ratio", "stall ms off", "on", "hit off", "on", "covered", "wasted a right",
    "never predicted", "late", "evicted again",
]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="default: all")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--warm", type=int, default=2, help="answers that are not measured")
    parser.add_argument("--speculation", choices=("off", "adaptive"), default="off", help="adaptive: with drafts")
    parser.add_argument("--serve-flag", action="append", default=[], help="one more flag for mtpd serve; repeat it")
    parser.add_argument("--verbose", action="store_true", help="also print the loader's facts at the end of each case")
    options = parser.parse_args(argv)
    rows = []
    for name in options.case or CASES:
        rows.append([name, *measure(CASES[name], options)])
        print(table(HEADER, rows), flush=True)  # so far: a run that is cut short has told what it measured


if __name__ == "__main__":
    main()
