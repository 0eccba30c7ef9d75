"""Which experts each token of a synthetic checkpoint goes to: a recorded trace, or random.

A plan is an int array `[layers, tokens, top_k]` of expert numbers, distinct along the last axis. Uniform random routing
says nothing about caching; it is here to compare with published figures that were taken on it, and says its name.
"""

import csv
from pathlib import Path

import numpy as np

from mtp_daemon.errors import UserError

Plan = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]


def random_plan(layers: int, tokens: int, experts: int, top_k: int, seed: int) -> Plan:
    """Uniform random routing."""
    order = np.random.default_rng(seed).random((layers, tokens, experts)).argsort(axis=-1)
    return order[..., :top_k]


def trace_plan(path: Path, layers: int, tokens: int, experts: int, top_k: int) -> Plan:
    """Routing of the decode phase of a `route_trace` CSV, reshaped to this model.

    Expert numbers beyond `experts` fold onto it, layers beyond the trace's repeat it half a trace later, and a smaller
    top-k in the trace is filled with the experts the same layer used in the tokens before: its own recent set.
    """
    steps = _decode_steps(path)
    known = max(layer for step in steps for layer in step) + 1
    plan = np.zeros((layers, tokens, top_k), dtype=np.int64)
    for layer in range(layers):
        shift = (layer // known) * len(steps) // 2
        recent: list[int] = list(range(experts))
        for token in range(tokens):
            chosen = steps[(token + shift) % len(steps)].get(layer % known, [])
            picked = list(dict.fromkeys(e % experts for e in chosen))[:top_k]
            picked += [e for e in recent if e not in picked][: top_k - len(picked)]
            recent = picked + [e for e in recent if e not in picked]
            plan[layer, token] = picked
    return plan


def _decode_steps(path: Path) -> list[dict[int, list[int]]]:
    steps: dict[tuple[int, int], dict[int, list[int]]] = {}
    with path.open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        needed = {"turn", "phase", "step", "layer", "expert"}
        if not needed <= set(rows.fieldnames or ()):
            raise UserError(f"{path} is no routing trace: it lacks {sorted(needed - set(rows.fieldnames or ()))}")
        for row in rows:
            if row["phase"] == "1":
                step = steps.setdefault((int(row["turn"]), int(row["step"])), {})
                step.setdefault(int(row["layer"]), []).append(int(row["expert"]))
    if not steps:
        raise UserError(f"{path} records no decode step")
    return [steps[key] for key in sorted(steps)]
