"""`mtpd status`: the service's account of itself."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from mtp_daemon.commands.asking import add_run_dir, service
from mtp_daemon.sizes import binary_bytes

_AHEAD = {"hint1": "one layer ahead", "hint2": "two layers ahead"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_dir(parser)
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")


def run(args: argparse.Namespace) -> int:
    with service(args.run_dir, "mtpd status") as client:
        status = client.status()
    print(json.dumps(status, ensure_ascii=False) if args.json else describe(status))
    return 0


def describe(status: Mapping[str, Any]) -> str:
    """The status for a person."""
    queue, requests = status["queue"], status["requests"]
    rows = [
        ("service", f"{status['phase']}, pid {status['pid']}, up {status['running_s']:.0f} s, {status['run_dir']}"),
        ("model", _model(status)),
        ("pool", _pool(status)),
        ("MTP", _mtp(status["engine_facts"])),
        ("queue", _queue(queue)),
        ("requests", _requests(requests)),
    ]
    if ahead := _ahead(status["experts"]):
        rows.insert(4, ("ahead", ahead))
    if adapter := status["engine_facts"].get("adapter"):
        rows.insert(4, ("adapter", str(adapter)))
    if (warm := status["experts"].get("warm", 1.0)) < 1.0:
        rows.insert(3, ("warm", f"{warm:.0%} of what goes into the pool ahead is there so far"))
    rows += [(role, _child(child)) for role, child in status["children"].items()]
    for trouble in ("refusing", "broken_invariant"):
        if status.get(trouble):
            rows.append(("trouble", str(status[trouble])))
    return "\n".join(f"{name:>9}  {text}" for name, text in rows)


def _model(status: Mapping[str, Any]) -> str:
    pool = status["pool"]
    kind = f" ({pool['model_type']}, {'packed' if pool['packed'] else 'not packed'})" if pool else ""
    return f"{status['model']}{kind}"


def _pool(status: Mapping[str, Any]) -> str:
    pool = status["pool"]
    if not pool:
        return "not made yet"
    text = f"{binary_bytes(pool['bytes'])}, {pool['share']:.0%} of all expert bytes"
    whole, now = sum(pool["slots"]), status["experts"].get("slots")
    if now is not None and now < whole:
        text += f", {now} of its {whole} slots in use"
    if (rate := status.get("hit_rate")) is not None:
        text += f", hit rate {rate:.1%}"
    return text


def _ahead(facts: Mapping[str, Any]) -> str:
    """What reading ahead did since the start of the loader; nothing where it is off, or nothing was asked yet."""
    if (told := facts.get("prediction")) is None:
        return str(facts.get("statistics", ""))  # a bug ended it
    counts = told.get("attribution", {})
    if not counts.get("hits", 0) + counts.get("misses", 0):
        return ""
    text = f"{'on' if facts.get('prefetch_active') else 'paused: it does not pay now'}, {counts['coverage']:.0%} of "
    text += f"misses read in time, {counts['wasted_per_useful']:.2f} wasted reads for each right one; misses: "
    text += (
        f"{counts['never_predicted']} never predicted, {counts['late']} late, {counts['evicted_again']} evicted again"
    )
    recall = told.get("recall", {})
    foreseen = [(words, recall[name]["at_k"]) for name, words in _AHEAD.items() if name in recall]
    return text + "".join(f"; {share:.0%} of what a layer needed foreseen {words}" for words, share in foreseen)


def _mtp(facts: Mapping[str, Any]) -> str:
    why = facts.get("mtp_why")
    return ("on" if facts.get("mtp") else "off") + (f": {why}" if why else "")


def _queue(queue: Mapping[str, Any]) -> str:
    running = f"answering {queue['running'][:8]} ({queue['running_tokens']} tokens)" if queue["running"] else "idle"
    return f"{running}, {queue['waiting']} waiting, clients connected: {queue['clients']}"


def _requests(counts: Mapping[str, int]) -> str:
    """Strays are the engine's messages about requests that had ended here: only worth a word when there are any, as
    are requests that were never accepted.
    """
    rare = ("stray", "turned_away")
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if name not in rare or count)


def _child(child: Mapping[str, Any]) -> str:
    text: str = child["state"] + (f", pid {child['pid']}" if child["pid"] else "")
    if child["restarts"]:
        text += f", restarts: {child['restarts']}"
    if child["last_error"]:
        text += f"; last error: {child['last_error']}"
    return text
