"""The `--stats` block: what a person wants to know of an answer's numbers. `--json` has all of them."""

from collections.abc import Mapping
from typing import Any

from mtp_protocol.client_messages import Finished
from mtp_protocol.ranks import Sizes

_DECODED_TOGETHER = 16  # tokens: a forward over more is a prompt's
_UNITS = ("B", "kB", "MB", "GB", "TB")


def stats_block(finished: Finished) -> str:
    """Lines for standard error, each ended by a newline."""
    stats, usage = finished.stats, finished.usage
    tokens = f"{usage.prompt_tokens} in, {usage.completion_tokens} out ({finished.reason})"
    if usage.cached_tokens:
        tokens += f", {usage.cached_tokens} of the prompt from the cache"
    lines = [("tokens", tokens)]
    lines += [("speed", line) for line in _speed(stats)]
    lines += [("experts", line) for line in _experts(stats, usage.completion_tokens)]
    lines += [("unions", line) for line in _unions(stats)]
    lines += [("drafts", line) for line in _drafts(stats)]
    lines += [("time", line) for line in _time(stats)]
    if peak := _number(stats, "memory_peak_bytes"):
        lines.append(("memory", f"{human_bytes(peak)} in MLX at most"))
    if warning := stats.get("warning"):
        lines.append(("warning", str(warning)))
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:>{width}}  {text}\n" for name, text in lines)


def _speed(stats: Mapping[str, Any]) -> list[str]:
    parts = []
    if (speed := _number(stats, "tok_per_s")) is not None:
        parts.append(f"{speed:.2f} tokens/s")
    if (ttft := _number(stats, "ttft_s")) is not None:
        parts.append(f"first token after {ttft:.2f} s")
    if queued := _number(stats, "queued_s"):
        parts.append(f"{queued:.2f} s in the queue")
    if restarts := _number(stats, "restarts"):
        parts.append(f"{restarts:.0f} engine restart(s) on the way")
    return [", ".join(parts)] if parts else []


def _experts(stats: Mapping[str, Any], tokens: int) -> list[str]:
    hits, misses = _number(stats, "hits"), _number(stats, "misses")
    if hits is None or misses is None:
        return []
    parts = [f"{hits:.0f} hits, {misses:.0f} misses"]
    if hits + misses:
        parts[0] += f" ({100 * hits / (hits + misses):.1f} % hit)"
    if (read := _number(stats, "bytes_read")) is not None:
        each = f", {human_bytes(read / tokens)} a token" if tokens else ""
        parts.append(f"{human_bytes(read)} read{each}")
    if (stall := _number(stats, "stall_s")) is not None:
        parts.append(f"{stall:.2f} s stalled on the disk")
    lines = ["; ".join(parts)]
    if ahead := _number(stats, "prefetched"):
        nbytes = human_bytes(_number(stats, "prefetched_bytes") or 0.0)
        lines.append(f"of that {nbytes} ({ahead:.0f} experts) read ahead of need")
    return lines


def _unions(stats: Mapping[str, Any]) -> list[str]:
    """How many distinct experts a layer needed, by tokens in the forward; large chunks are for --json."""
    lines = []
    for tokens, counted in sorted(stats.get("unions", {}).items(), key=lambda item: int(item[0])):
        if not any(counted.values()) or int(tokens) > _DECODED_TOGETHER:
            continue
        sizes = Sizes.of({int(size): times for size, times in counted.items()})
        forward = f"{tokens} token{'s' if tokens != '1' else ''} in a forward"
        ranks = f"p50 {sizes.p50}, p99 {sizes.p99}, max {sizes.largest}"
        lines.append(f"{forward}: {sizes.mean:.1f} experts a layer ({ranks})")
    return lines


def _time(stats: Mapping[str, Any]) -> list[str]:
    """Of the whole answer: its parts, and the parts of its rounds."""
    whole, prefill, decode = (_number(stats, f"{name}_s") for name in ("total", "prefill", "decode"))
    if whole is None or prefill is None or decode is None:
        return []
    lines = [f"{whole:.2f} s: {prefill:.2f} s for the prompt, {decode:.2f} s for the answer"]
    rounds = [(name, _number(stats, f"{name}_s")) for name in ("draft", "verify", "commit", "sync")]
    known = [f"{name} {seconds:.2f} s" for name, seconds in rounds if seconds is not None]
    return [*lines, "rounds: " + ", ".join(known)] if known else lines


def _drafts(stats: Mapping[str, Any]) -> list[str]:
    drafted, accepted = _number(stats, "drafted"), _number(stats, "accepted")
    if not drafted or accepted is None:
        return []
    line = f"{accepted:.0f} of {drafted:.0f} accepted ({100 * accepted / drafted:.1f} %)"
    if rounds := _number(stats, "rounds"):
        line += f" in {rounds:.0f} rounds"
    if (each := _number(stats, "tokens_per_round")) is not None:
        line += f", {each:.2f} tokens a round"
    lines = [line]
    right, tried = stats.get("accepted_by_position"), stats.get("drafted_by_position")
    if isinstance(right, list) and isinstance(tried, list):
        shares = [f"{100 * a / d:.0f} %" for a, d in zip(right, tried, strict=False) if d]
        lines.append("accepted by position: " + ", ".join(shares))
    return lines


def _number(stats: Mapping[str, Any], key: str) -> float | None:
    value = stats.get(key)
    return float(value) if isinstance(value, int | float) else None


def human_bytes(count: float) -> str:
    """`1.5 GB`; decimal units, as disks are sold."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
