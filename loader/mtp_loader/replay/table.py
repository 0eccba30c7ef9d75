"""Policies by residency: the rows of a replay's table, as JSON's types and as text."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context

from mtp_loader.errors import BadRequest
from mtp_loader.policy.interface import Event, Policy
from mtp_loader.policy.registry import CLAIRVOYANT, DEFAULT, make_policy
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.run import MakePolicy, Tally, replay
from mtp_loader.replay.timeline import Timeline, make_predictor
from mtp_loader.replay.trace import DECODE, PROMPT, Trace

PREDICTORS = ("none", "blend")
_EVENTS_WORTH_A_PROCESS = 100_000


@dataclass(frozen=True)
class Row:
    """One policy at one residency share with one predictor, decode phase only; rates are shares 0..1, times seconds.

    `of_best` is the hit rate over Belady's without prediction. `waste` is wasted reads a useful one.
    """

    trace: str
    policy: str
    predictor: str
    share: float
    slots: int
    requests: int
    hits: int
    misses: int
    hit_rate: float
    of_best: float
    coverage: float
    waste: float
    bytes_per_token: float
    compute_s: float
    stall_s: float
    bound_s: float


@dataclass(frozen=True)
class Plan:
    """What to try. `shares` are of all experts; `reserve` slots are kept free in each bank."""

    policies: Sequence[str]
    shares: Sequence[float]
    predictors: Sequence[str]
    machine: Machine
    reserve: int = 0


def maker(name: str) -> MakePolicy:
    """Raises BadRequest for a name that there is not."""

    def make(future: Sequence[Event]) -> Policy:
        return make_policy(name, future)

    make(())
    return make


def counted(tallies: Mapping[int, Tally]) -> Tally:
    """The phase that counts: decode, the prompt having warmed the pool; or the prompt of a recording without decode."""
    return tallies[DECODE] if tallies[DECODE].requests else tallies[PROMPT]


_Combination = tuple[str, str, float]
"""Policy, predictor, share."""


def rows(trace: Trace, plan: Plan, jobs: int = 1) -> list[Row]:
    """Every combination; one with a predictor needs a reserve to read into. In `jobs` processes if it is much."""
    for name in plan.policies:
        maker(name)
    if unknown := set(plan.predictors) - set(PREDICTORS):
        raise BadRequest(f"no predictor {min(unknown)!r}; there are {', '.join(PREDICTORS)}")
    best = [(CLAIRVOYANT, "none", share) for share in plan.shares]
    wanted = [(name, how, share) for share in plan.shares for name in plan.policies for how in plan.predictors]
    found = _all(trace, plan, list(dict.fromkeys([*best, *wanted])), jobs)
    ceiling = {share: found[CLAIRVOYANT, "none", share].hit_rate for share in plan.shares}
    return [replace(found[c], of_best=found[c].hit_rate / ceiling[c[2]] if ceiling[c[2]] else 0.0) for c in wanted]


def _all(trace: Trace, plan: Plan, combinations: list[_Combination], jobs: int) -> dict[_Combination, Row]:
    workers = min(jobs, len(trace.events) * len(combinations) // _EVENTS_WORTH_A_PROCESS)
    if workers < 2:
        return {what: _row(trace, plan, what) for what in combinations}
    # Spawned, never forked: the caller may have threads. The slowest policies start first.
    order = sorted(combinations, key=lambda what: (what[1] == "none", what[0] != DEFAULT))
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (trace, plan)) as pool:
        return dict(zip(order, pool.map(_row_here, order), strict=True))


def _begin(trace: Trace, plan: Plan) -> None:
    """In a worker process: what all its rows are of, sent once."""
    _here.append((trace, plan))


def _row_here(what: _Combination) -> Row:
    return _row(*_here[0], what)


_here: list[tuple[Trace, Plan]] = []


def _row(trace: Trace, plan: Plan, what: _Combination) -> Row:
    name, predictor, share = what
    slots, make = trace.slots(share), maker(name)
    if predictor == "none":
        tally = counted(replay(trace, make, slots, plan.reserve))
        compute = plan.machine.compute_s * tally.events
        read_s = tally.read_bytes / plan.machine.bandwidth
        stall, bound, coverage, waste, nbytes = read_s, max(compute, read_s), 0.0, 0.0, tally.read_bytes
    else:
        line = Timeline(trace, make, slots, plan.reserve, plan.machine, make_predictor(trace))
        line.run()
        tally, counts = counted(line.tallies), line.ahead.attributor.counts
        compute, stall, bound = line.timing.compute_s, line.timing.stall_s, line.timing.bound_s
        coverage, waste, nbytes = counts.coverage, counts.waste, line.timing.read_bytes
    return Row(
        trace.name, name, predictor, share, sum(slots.values()), tally.requests, tally.hits, tally.misses,
        tally.hit_rate, 0.0, coverage, waste,
        nbytes / max(tally.tokens, 1), compute, stall, bound,
    )  # fmt: skip


def as_json(found: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in found]


def as_text(found: Sequence[Row]) -> str:
    """One table a recording: per residency, hit rate, share of Belady's, and what it means in bytes and time."""
    lines = []
    for trace in dict.fromkeys(row.trace for row in found):
        lines += ["", trace, _HEAD]
        for row in (r for r in found if r.trace == trace):
            lines.append(
                f"{row.share:6.1%}  {row.policy:<10} {row.predictor:<9} {row.hit_rate:7.2%} {row.of_best:8.3f} "
                f"{row.coverage:9.1%} {row.waste:6.2f} {row.bytes_per_token / 1e6:10.1f} {row.compute_s:9.2f} "
                f"{row.stall_s:8.2f} {row.bound_s:8.2f}"
            )
    return "\n".join(lines[1:])


_HEAD = (
    " share  policy     predictor     hit  of best  coverage  waste   MB/token compute s  stall s  bound s"
    "\n  (decode phase; the prompt warms the pool. of best: over Belady's)"
)
