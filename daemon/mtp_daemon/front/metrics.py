"""The service's numbers in Prometheus' text format, version 0.0.4. Pure: from one snapshot to one text."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True)
class Snapshot:
    """What was true at one moment of the front's loop. `rss` is bytes by process; `totals` are sums over answers.

    `unions`: by tokens in a forward, the layers that ran and the distinct experts that they needed.
    """

    status: Mapping[str, Any]
    tokens: int = 0
    prompt_tokens: int = 0
    totals: Mapping[str, float] = field(default_factory=dict)
    rss: Mapping[str, int] = field(default_factory=dict)
    unions: Mapping[str, tuple[int, int]] = field(default_factory=dict)


# Sums over ended answers: name of the metric, of the statistic, and its help.
_ANSWERS = (
    ("expert_hits_total", "hits", "Experts that answers found in the pool."),
    ("expert_misses_total", "misses", "Experts that answers had to wait for."),
    ("expert_bytes_read_total", "bytes_read", "Bytes of experts that came for answers, read ahead or not."),
    ("stall_seconds_total", "stall_s", "Time that answers waited for experts."),
    ("rounds_total", "rounds", "Rounds of draft and verify."),
    ("drafted_tokens_total", "drafted", "Tokens drafted."),
    ("accepted_tokens_total", "accepted", "Drafted tokens that the model accepted."),
    ("prefill_seconds_total", "prefill_s", "Time that answers spent on their prompts."),
    ("decode_seconds_total", "decode_s", "Time that answers spent on decoding."),
)
# The loader's own counters since its start, prefetches included.
_LOADER = (
    ("loader_bytes_read_total", "bytes_read", "Bytes the loader has read since it started, prefetches included."),
    ("loader_read_failures_total", "read_failures", "Reads that failed."),
    ("loader_prefetches_total", "prefetches", "Experts read ahead of need."),
    ("loader_prefetches_in_time_total", "prefetched_in_time", "Experts read ahead and found in the pool when needed."),
    ("loader_evictions_total", "evictions", "Experts given up for others."),
)
# Why a demand was a miss: label, and the loader's name for it.
_CAUSES = (("never_predicted",) * 2, ("late", "predicted_late"), ("evicted_again",) * 2)
_SLOT_STATES = ("resident", "filling", "recalled", "free")
_OUTCOMES = ("finished", "cancelled", "refused", "failed")


def render(snapshot: Snapshot) -> str:
    """One block a metric: HELP, TYPE, samples. A number that is not known yet is left out, not guessed."""
    status = snapshot.status
    queue, requests, loader = status["queue"], status["requests"], status["experts"]
    children: Mapping[str, Mapping[str, Any]] = status["children"]
    parts = [
        _metric("up_seconds", "gauge", "Time the service has run.", [({}, status["running_s"])]),
        _metric("serving", "gauge", "1 while requests are taken.", [({}, float(status["phase"] == "serving"))]),
        _metric("tokens_total", "counter", "Tokens of answers.", [({}, snapshot.tokens)]),
        _metric("prompt_tokens_total", "counter", "Tokens of answered prompts.", [({}, snapshot.prompt_tokens)]),
        _metric("requests_accepted_total", "counter", "Requests accepted.", [({}, requests["accepted"])]),
        _metric(
            "requests_total", "counter", "Requests ended, by outcome.",
            [({"outcome": name}, requests[name]) for name in _OUTCOMES],
        ),
        _metric(
            "requests_turned_away_total", "counter", "Requests refused before they were accepted.",
            [({}, requests["turned_away"])],
        ),
        _metric("queue_length", "gauge", "Requests that wait.", [({}, queue["waiting"])]),
        _metric("running", "gauge", "1 while a request is answered.", [({}, float(queue["running"] is not None))]),
        _metric("clients", "gauge", "Clients connected.", [({}, queue["clients"])]),
        _metric("bad_messages_total", "counter", "Clients' bad frames.", [({}, status["bad_messages"])]),
        *(_metric(n, "counter", text, [({}, snapshot.totals.get(key, 0.0))]) for n, key, text in _ANSWERS),
        *(_metric(n, "counter", text, [({}, loader[key])]) for n, key, text in _LOADER if key in loader),
        *_prediction(loader),
        *_unions(snapshot.unions),
        *_pool(status),
        _metric(
            "child_restarts_total", "counter", "Restarts of each child process.",
            [({"process": role}, child["restarts"]) for role, child in children.items()],
        ),
        _metric(
            "child_ready", "gauge", "1 while the child process is ready.",
            [({"process": role}, float(child["state"] == "ready")) for role, child in children.items()],
        ),
        _metric(
            "resident_memory_bytes", "gauge", "Memory in use; the pool counts in each process that maps it.",
            [({"process": name}, nbytes) for name, nbytes in snapshot.rss.items()],
        ),
    ]  # fmt: skip
    return "".join(parts)


def _prediction(loader: Mapping[str, Any]) -> Iterable[str]:
    causes: list[Sample] = [({"cause": cause}, loader[name]) for cause, name in _CAUSES if name in loader]
    yield _metric("loader_misses_total", "counter", "Experts needed that were not in the pool, by cause.", causes)
    recall = loader.get("prediction", {}).get("recall", {})
    for at in ("k", "2k"):
        shares: list[Sample] = [({"source": name}, told[f"at_{at}"]) for name, told in recall.items()]
        yield _metric(f"prediction_recall_at_{at}", "gauge", f"Of needed experts, predicted in the best {at}.", shares)


def _unions(unions: Mapping[str, tuple[int, int]]) -> Iterable[str]:
    layers: list[Sample] = [({"tokens": tokens}, ran) for tokens, (ran, _) in unions.items()]
    experts: list[Sample] = [({"tokens": tokens}, needed) for tokens, (_, needed) in unions.items()]
    yield _metric("forward_layers_total", "counter", "Layers run, by tokens in the forward.", layers)
    yield _metric("forward_experts_total", "counter", "Distinct experts that these layers needed.", experts)


def _pool(status: Mapping[str, Any]) -> Iterable[str]:
    loader, pool = status["experts"], status["pool"]
    if pool:
        yield _metric("pool_bytes", "gauge", "Size of the pool's region.", [({}, pool["bytes"])])
        yield _metric("expert_bytes", "gauge", "Bytes of all experts together.", [({}, pool["expert_bytes"])])
    if "slots" in loader:
        yield _metric("pool_slots", "gauge", "Slots that may be used now.", [({}, loader["slots"])])
        states: list[Sample] = [({"state": s}, loader[s]) for s in _SLOT_STATES if s in loader]
        yield _metric("pool_slots_in_state", "gauge", "Slots by state.", states)


def _metric(name: str, kind: Literal["counter", "gauge"], text: str, samples: Iterable[Sample]) -> str:
    lines = [f"mtpd_{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]
    if not lines:
        return ""
    return f"# HELP mtpd_{name} {text}\n# TYPE mtpd_{name} {kind}\n{''.join(lines)}"


def _labels(labels: Mapping[str, str]) -> str:
    """Values are words of ours, with nothing to escape."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def _number(value: float) -> str:
    """Whole numbers in full: a byte count in scientific notation loses bytes."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
