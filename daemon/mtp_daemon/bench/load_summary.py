"""The figures of `mtp-bench serve`, from what its clients wrote down. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mtp_daemon.bench.figures import jain, percentile, table
from mtp_daemon.bench.load_client import Asked
from mtp_loader.chart import Axis, Chart

SHARES = (0.5, 0.95, 0.99)
_PICTURED = tuple(i / 20 for i in range(1, 21))


@dataclass(frozen=True)
class FrontCost:
    """Seconds of CPU time that the front used over `wall_s`; `idle_share` of a core is what it uses while idle."""

    cpu_s: float
    wall_s: float
    idle_share: float

    def per_token(self, tokens: int) -> float:
        """Seconds a token, beyond idling."""
        return max(0.0, self.cpu_s - self.idle_share * self.wall_s) / tokens if tokens else 0.0

    def share_at(self, tok_per_s: float, tokens: int) -> float:
        """Of a core, at another speed."""
        return self.idle_share + tok_per_s * self.per_token(tokens)


def summary(asked: Sequence[Asked], cost: FrontCost) -> dict[str, Any]:
    """Times in seconds. Percentiles are over answers that ended whole; what did not is counted in `outcomes`."""
    whole = [a for a in asked if a.whole and a.runs]
    tokens = sum(a.tokens for a in asked)
    return {
        "requests": len(asked),
        "outcomes": dict(Counter(a.outcome for a in asked)),
        "tokens": tokens,
        "tok_per_s": _throughput(asked),
        "ttft_s": _percentiles([ttft(a) for a in whole]),
        "queued_s": _percentiles([a.stats["queued_s"] for a in whole]),
        "token_s": _percentiles([s for a in whole for s in token_times(a)]),
        "emit_to_receive_s": _percentiles([d for a in whole if (d := front_delay(a)) is not None]),
        "fairness": fairness(whole),
        "front": {
            "cpu_s_per_token": cost.per_token(tokens),
            "share_of_core": cost.cpu_s / cost.wall_s,
            "share_of_core_idle": cost.idle_share,
            "share_of_core_at_50_tok_per_s": cost.share_at(50.0, tokens),
        },
    }


def ttft(asked: Asked) -> float:
    """From when the request was due, so that a load that falls behind shows, to its first token."""
    return asked.runs[0][0] - asked.due_s


def token_times(asked: Asked) -> list[float]:
    """Of every token after the first run: its run's gap to the run before, shared by the tokens of the run."""
    times = []
    for (before, _), (at, count) in pairwise(asked.runs):
        times += [(at - before) / count] * count
    return times


def front_delay(asked: Asked) -> float | None:
    """From the engine's sending the first tokens to the client's having them; the clock is the machine's own."""
    sent = asked.stats.get("first_at_s")
    return None if sent is None else asked.runs[0][0] - sent


def fairness(whole: Sequence[Asked]) -> dict[str, float]:
    """Jain's index over clients: of their mean time to a first token, and of the tokens a second of their answers."""
    waiting: dict[int, list[float]] = {}
    served: dict[int, list[float]] = {}
    for a in whole:
        waiting.setdefault(a.client, []).append(ttft(a))
        served.setdefault(a.client, []).append(a.tokens / (a.runs[-1][0] - a.due_s))
    return {
        "clients": len(waiting),
        "waiting": jain([sum(x) / len(x) for x in waiting.values()]),
        "service": jain([sum(x) / len(x) for x in served.values()]),
    }


def _throughput(asked: Sequence[Asked]) -> float:
    """Tokens a second from the first request's being due to the last token's arrival."""
    ends = [a.runs[-1][0] for a in asked if a.runs]
    if not ends:
        return 0.0
    return sum(a.tokens for a in asked) / (max(ends) - min(a.due_s for a in asked))


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    return {f"p{share * 100:.0f}": percentile(values, share) for share in SHARES} if values else None


def text(result: Mapping[str, Any]) -> str:
    names = {
        "ttft_s": "first token, from when it was due",
        "queued_s": "of it in the queue",
        "token_s": "time a token after the first",
        "emit_to_receive_s": "engine sends to client has (first token)",
    }
    rows = []
    for key, name in names.items():
        found = result[key]
        rows.append([name, *(f"{1e3 * v:.2f}" for v in found.values())] if found else [name, "-", "-", "-"])
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in result["outcomes"].items())
    fair, front = result["fairness"], result["front"]
    lines = [
        f"{result['requests']} requests ({outcomes}), {result['tokens']} tokens, {result['tok_per_s']:.2f} tok/s",
        f"fairness over {fair['clients']} clients (Jain): waiting {fair['waiting']:.3f}, service {fair['service']:.3f}",
    ]
    lines.append(
        f"front: {1e3 * front['cpu_s_per_token']:.3f} ms of CPU a token, {front['share_of_core']:.2%} of a core "
        f"({front['share_of_core_idle']:.2%} idle); {front['share_of_core_at_50_tok_per_s']:.2%} at 50 tok/s"
    )
    return "\n".join([table(["ms", *(f"p{share * 100:.0f}" for share in SHARES)], rows), *lines])


def chart(asked: Sequence[Asked]) -> Chart:
    """How long a first token took: the share of answers that had it by then."""
    found = [ttft(a) for a in asked if a.whole and a.runs]
    line = [(percentile(found, share), 100 * share) for share in _PICTURED] if found else []
    return Chart(
        "First token", Axis("after the request was due", " s"), Axis("of answers", " %", 100), {"answers": line}
    )
