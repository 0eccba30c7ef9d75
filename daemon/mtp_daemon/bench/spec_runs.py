"""What `mtp-bench spec` measures: the paths in turn on one service, and checks that are not timed."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_daemon.bench.footprint import Footprint
from mtp_daemon.bench.recorded import read_recorded
from mtp_daemon.bench.serving import Service, serving
from mtp_daemon.bench.spec_summary import Run, counted, mismatches
from mtp_daemon.bench.steps import Steps


@dataclass(frozen=True)
class Plan:
    """`depths` begins with 0, plain decoding; `way` drafts in all others. Each answer has `tokens` tokens."""

    prompt: Sequence[int]
    tokens: int
    way: str
    depths: Sequence[int]
    repeats: int

    def way_of(self, depth: int) -> str:
        return self.way if depth else "off"


@dataclass(frozen=True)
class Measured:
    """Runs by depth, in the order they were made; `memory` as JSON."""

    runs: dict[int, list[Run]]
    memory: dict[str, Any]


def measure(plan: Plan, service: Service, steps: Steps) -> Measured:
    """Every depth in turn, `repeats` times, after one warm-up of each over the full length.

    Memory is looked at during the warm-up, whose speed does not count.
    """
    footprint = Footprint(service.pids())
    before = service.loader_counts()
    runs: dict[int, list[Run]] = {depth: [] for depth in plan.depths}

    def one(depth: int) -> Run:
        nonlocal before
        served = service.answer(plan.prompt, plan.tokens, speculation=plan.way_of(depth), depth=depth)
        since, before = before, service.loader_counts(before, served)
        return Run(served, counted(since, before))

    with footprint:
        for depth in plan.depths:
            steps.begin(f"depth {depth}, warm-up")
            one(depth)
    for repeat in range(plan.repeats):
        for depth in plan.depths:
            steps.begin(f"depth {depth}, run {repeat + 1}")
            runs[depth].append(one(depth))
    return Measured(runs, _memory(service, footprint))


def _memory(service: Service, footprint: Footprint) -> dict[str, Any]:
    status = service.client.status()
    facts = status["engine_facts"]
    parts = {"dense weights": facts["dense_bytes"], "MTP head": facts["head_bytes"], "pool": status["pool"]["bytes"]}
    return {"parts": parts, "processes": footprint.peak, "sum": footprint.peak_sum}


Experts = tuple[tuple[int, int], ...]
"""(layer, expert) pairs."""


def hottest(model: Path, flags: Sequence[str], prompt: Sequence[int], tokens: int, count: int) -> Experts:
    """See `calibrated`, on a service of its own."""
    with tempfile.TemporaryDirectory(prefix="mtpd-bench-") as directory:
        recording = Path(directory) / "routing"
        with serving(model, *flags, "--record-routing", str(recording)) as service:
            return calibrated(service, recording, prompt, tokens, count)


def calibrated(service: Service, recording: Path, prompt: Sequence[int], tokens: int, count: int) -> Experts:
    """The experts, at most `count`, that an answer of `tokens` tokens uses most, by what the service records."""
    counts = service.loader_counts()
    service.loader_counts(counts, service.answer(prompt, tokens))  # what the loader has heard of it has recorded
    return read_recorded(recording).hottest(count)


def verified(model: Path, flags: Sequence[str], plan: Plan, judge: Sequence[int]) -> tuple[int, int]:
    """`(slots hashed at use, tokens that differ)` of one answer a depth. A slot that holds the wrong bytes ends the
    answer: raises EnvironmentFailure naming slot, layer and expert.
    """
    slots = differing = 0
    with serving(model, *flags, "--verify-slots", "true") as service:
        for depth in plan.depths:
            served = service.answer(plan.prompt, plan.tokens, speculation=plan.way_of(depth), depth=depth)
            slots += served.stats["slots_verified"]
            differing += mismatches(served.ids, judge)
    return slots, differing
