"""The figures of `mtp-bench spec`, from answers and counters. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtp_daemon.bench.figures import Spread, paired_ratio
from mtp_daemon.bench.serving import Served
from mtp_protocol.client_messages import TokenLogprobs
from mtp_protocol.ranks import Sizes

PARTS = ("draft", "verify", "sync", "commit", "stall", "finish")
"""Where a round's time goes. The stall is time within draft and verify; `finish` is what lies between rounds: text,

messages, the depth controller.
"""
LOADER = ("experts_read", "bytes_read", "prefetches", "prefetched_in_time")


@dataclass(frozen=True)
class Run:
    """An answer, and what the loader counted meanwhile."""

    served: Served
    loader: Mapping[str, int]


def counted(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """What the loader did between two of its accounts; what it has no counter for (no prefetching) is 0."""
    return {name: int(after.get(name, 0)) - int(before.get(name, 0)) for name in LOADER}


def summary(depth: int, runs: Sequence[Run], plain: Sequence[Run], judge: Sequence[int]) -> dict[str, Any]:
    """What one depth gave; `plain` are the runs of depth 0 in the same rounds, `judge` mlx-lm's tokens."""
    stats = [r.served.stats for r in runs]
    last = stats[-1]
    differing = sum(mismatches(r.served.ids, judge) for r in runs)
    speed = [s["tok_per_s"] for s in stats]
    return {
        "depth": depth,
        "tok_per_s": Spread.of(speed),
        "speed_up": paired_ratio(speed, [p.served.stats["tok_per_s"] for p in plain]),
        "exact_match": differing == 0,
        "mismatches": differing,
        "compared": sum(max(len(r.served.ids), len(judge)) for r in runs),
        "tokens_per_round": _median(stats, lambda s: s["tokens_per_round"]),
        "acceptance_by_position": last["acceptance_by_position"],
        "accepted_lengths": last["accepted_lengths"],
        **commits(last),
        **experts(runs, plain),
        **time_by_part(stats),
        "unions": unions(stats),
        "cache_bytes": int(_median(stats, lambda s: s["cache_bytes"])),
        "activation_bytes": int(_median(stats, activations)),
        "mlx_peak_bytes": max(s["memory_peak_bytes"] for s in stats),
    }


def mismatches(ids: Sequence[int], judge: Sequence[int]) -> int:
    """Places where the two differ; what one has beyond the other's end counts as well."""
    return sum(a != b for a, b in zip(ids, judge, strict=False)) + abs(len(ids) - len(judge))


def commits(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Verifies of drafts: those in one forward, taken back to any position directly, and those that fell back to one
    forward a position. `fallback_why` is the engine's reason.
    """
    verified = (stats.get("drafted_by_position") or [0])[0]
    direct = stats["verify"] == "batch"
    return {
        "direct_commits": verified if direct else 0,
        "fallbacks": 0 if direct else verified,
        "fallback_why": None if direct else stats["verify"],
    }


def experts(runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    """Hits, and what was read: all that the loader read, for demands and ahead of them, and as a share of plain's."""
    stats = [r.served.stats for r in runs]
    loads, nbytes = _loads(runs), _bytes(runs)
    return {
        "hit_rate": Spread.of([r.served.hit_rate for r in runs]).median,
        "misses_per_token": _median(stats, lambda s: s["misses_per_token"]),
        "loads": loads,
        "bytes_read": nbytes,
        "loads_of_plain": loads / _loads(plain) if _loads(plain) else None,
        "bytes_of_plain": nbytes / _bytes(plain) if _bytes(plain) else None,
        "prefetches": Spread.of([r.loader["prefetches"] for r in runs]).median,
        "prefetched_in_time": Spread.of([r.loader["prefetched_in_time"] for r in runs]).median,
    }


def _loads(runs: Sequence[Run]) -> float:
    return Spread.of([r.loader["experts_read"] for r in runs]).median


def _bytes(runs: Sequence[Run]) -> float:
    return Spread.of([r.loader["bytes_read"] for r in runs]).median


def time_by_part(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median seconds by part, and tokens a second if that part alone took no time."""
    by_run = [_parts(s) for s in stats]
    seconds = {part: Spread.of([parts[part] for parts in by_run]).median for part in PARTS}
    whole = _median(stats, lambda s: s["decode_s"])
    tokens = _median(stats, lambda s: s["committed"])
    without = {p: tokens / (whole - t) if whole > t else None for p, t in seconds.items()}
    return {"decode_s": whole, "seconds": seconds, "tok_per_s_without": without}


def _parts(stats: Mapping[str, Any]) -> dict[str, float]:
    rounds = {part: float(stats[f"{part}_s"]) for part in ("draft", "verify", "sync", "commit")}
    finish = max(0.0, stats["decode_s"] - sum(rounds.values()))
    return {**rounds, "stall": float(stats["decode_stall_s"]), "finish": finish}


def unions(stats: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By tokens in the forward: how many distinct experts a layer needed; prompts' chunks are forwards too."""
    counts: dict[int, Counter[int]] = {}
    for answer in stats:
        for tokens, sizes in answer["unions"].items():
            counts.setdefault(int(tokens), Counter()).update({int(size): n for size, n in sizes.items()})
    return {str(tokens): asdict(Sizes.of(counts[tokens])) for tokens in sorted(counts)}


def activations(stats: Mapping[str, Any]) -> float:
    """Bytes that MLX held at the peak beyond what it held before the answer and the answer's caches."""
    held = float(stats["memory_start_bytes"] + stats["cache_bytes"])
    return max(0.0, float(stats["memory_peak_bytes"]) - held)


def margins(logprobs: Sequence[TokenLogprobs]) -> list[float]:
    """The gap between the best two tokens' log probabilities at each step: small where two are nearly tied."""
    return [entry.top[0][1] - entry.top[1][1] for entry in logprobs if len(entry.top) > 1]


def _median(stats: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], float]) -> float:
    return Spread.of([float(read(s)) for s in stats]).median
