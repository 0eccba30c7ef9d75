"""`mtp-bench spec` for people: its tables and its picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from mtp_daemon.bench.figures import Spread, table
from mtp_daemon.bench.spec_summary import PARTS
from mtp_loader.chart import Axis, Chart


def text(results: Mapping[str, Any]) -> str:
    """All tables, apart by blank lines."""
    depths = results["depths"]
    blocks = [_speed(depths), _experts(depths), _time(depths), _unions(depths), _memory(results)]
    if results["pinned"] is not None:
        blocks.append(f"pinned: {results['pinned']} experts, hottest of {results['calibrated_tokens']} tokens")
    if results["margins"]:
        blocks.append(_margins(results["margins"]))
    if results["slots_verified"] is not None:
        differing = results["verify_mismatches"]
        blocks.append(f"bytes: {results['slots_verified']} slots hashed at use, 0 bad; {differing} tokens differ")
    return "\n\n".join(blocks)


def chart(depths: Sequence[Mapping[str, Any]]) -> Chart:
    """Acceptance by position, a line a depth."""
    lines = {
        f"depth {r['depth']}": [(i + 1, 100 * a) for i, a in enumerate(r["acceptance_by_position"])]
        for r in depths
        if r["acceptance_by_position"]
    }
    longest = max((len(line) for line in lines.values()), default=1)
    x = Axis("position of the draft", high=float(longest))
    return Chart("Acceptance by position, where all drafts before were right", x, Axis("accepted", " %", 100), lines)


def _speed(depths: Sequence[Mapping[str, Any]]) -> str:
    header = ["depth", "tok/s", "speed-up", "exact", "tokens a round", "acceptance by position", "rounds x tokens",
              "direct commits", "fallbacks"]  # fmt: skip
    rows = [
        [
            str(r["depth"]),
            Spread.text(r["tok_per_s"]),
            Spread.text(r["speed_up"]),
            "yes" if r["exact_match"] else f"NO, {r['mismatches']} of {r['compared']} differ",
            f"{r['tokens_per_round']:.2f}",
            " ".join(f"{a:.0%}" for a in r["acceptance_by_position"]) or "-",
            " ".join(f"{n}x{k}" for k, n in r["accepted_lengths"].items()),
            str(r["direct_commits"]),
            str(r["fallbacks"]) + (f" ({r['fallback_why']})" if r["fallbacks"] else ""),
        ]
        for r in depths
    ]
    return table(header, rows)


def _experts(depths: Sequence[Mapping[str, Any]]) -> str:
    header = [
        "depth",
        "hit rate",
        "misses a token",
        "loads",
        "of plain",
        "MB read",
        "of plain",
        "prefetches",
        "in time",
    ]
    rows = [
        [
            str(r["depth"]),
            f"{r['hit_rate']:.1%}",
            f"{r['misses_per_token']:.2f}",
            f"{r['loads']:.0f}",
            _ratio(r["loads_of_plain"]),
            f"{r['bytes_read'] / 1e6:.1f}",
            _ratio(r["bytes_of_plain"]),
            f"{r['prefetches']:.0f}",
            f"{r['prefetched_in_time']:.0f}",
        ]
        for r in depths
    ]
    return "what an answer reads, its prompt included (loads: experts read, asked for or ahead)\n" + table(header, rows)


def _time(depths: Sequence[Mapping[str, Any]]) -> str:
    header = ["depth", "decode s", *(f"{p} s" for p in PARTS), *(f"no {p}" for p in PARTS)]
    rows = [
        [
            str(r["depth"]),
            f"{r['decode_s']:.2f}",
            *(f"{r['seconds'][p]:.3f}" for p in PARTS),
            *(_rate(r["tok_per_s_without"][p]) for p in PARTS),
        ]
        for r in depths
    ]
    title = "seconds by part (stall lies within draft and verify), and tok/s if that part alone took no time"
    return f"{title}\n{table(header, rows)}"


def _unions(depths: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [f"{r['depth']}, {tokens}", f"{u['mean']:.1f}", str(u["p50"]), str(u["p99"]), str(u["largest"])]
        for r in depths
        for tokens, u in r["unions"].items()
    ]
    header = ["depth, tokens in the forward", "mean", "p50", "p99", "max"]
    return "distinct experts a layer of a forward needs\n" + table(header, rows)


def _memory(results: Mapping[str, Any]) -> str:
    memory = results["memory"]
    deepest = results["depths"][-1]
    rows = [[name.replace("_", " "), f"{nbytes / 1e6:.1f}"] for name, nbytes in memory["parts"].items()]
    rows += [
        ["caches, at an answer's end", f"{deepest['cache_bytes'] / 1e6:.1f}"],
        ["activations, at the peak", f"{deepest['activation_bytes'] / 1e6:.1f}"],
        *([f"{name}, peak", f"{nbytes / 1e6:.1f}"] for name, nbytes in memory["processes"].items()),
        ["all three at once, peak", f"{memory['sum'] / 1e6:.1f}"],
    ]
    how = "a page that two processes map counts half in each"
    return f"memory, the deepest speculation's; of processes, {how}\n{table(['', 'MB'], rows)}"


def _margins(gaps: Sequence[float]) -> str:
    low = sorted(range(len(gaps)), key=gaps.__getitem__)[:5]
    where = ", ".join(f"{gaps[i]:.4f} at token {i}" for i in low)
    return f"top-2 gap of log probabilities over {len(gaps)} steps, the smallest: {where}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
