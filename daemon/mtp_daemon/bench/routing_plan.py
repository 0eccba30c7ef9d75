"""Which experts each token of a synthetic checkpoint goes to: recorded routing, or random.

A plan is an int array `[layers, tokens, top_k]` of expert numbers, distinct along the last axis. Uniform random routing
says nothing about caching; it is here to compare with published figures that were taken on it, and says its name.
"""

import tempfile
from pathlib import Path

import numpy as np

from mtp_daemon.bench.recorded import Recorded, read_recorded
from mtp_daemon.bench.serving import serving
from mtp_protocol.sampling import Sampling

Plan = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]


def random_plan(layers: int, tokens: int, experts: int, top_k: int, seed: int) -> Plan:
    """Uniform random routing."""
    order = np.random.default_rng(seed).random((layers, tokens, experts)).argsort(axis=-1)
    return order[..., :top_k]


def recorded_plan(recorded: Recorded, layers: int, tokens: int, experts: int, top_k: int) -> Plan:
    """The recording's decode steps, reshaped to this model.

    Layers beyond the recording's repeat it half a recording later. Of more experts than it knows, each further lot of
    as many is routed as if by the recording begun elsewhere, and the lots share the top-k; fewer are folded onto. Where
    the recording names too few, the experts that the same layer used last fill up: its own recent set.
    """
    known, length = len(recorded.layers), len(recorded.steps)
    lots = max(1, experts // recorded.experts)
    plan = np.zeros((layers, tokens, top_k), dtype=np.int64)
    for layer in range(layers):
        shift = (layer // known) * length // 2
        recent = list(range(experts))
        for token in range(tokens):
            rows = [
                _row(recorded, recorded.layers[layer % known], token + shift + lot * length // lots, lot, experts)
                for lot in range(lots)
            ]
            in_turn = [row[rank] for rank in range(max(map(len, rows))) for row in rows if rank < len(row)]
            picked = list(dict.fromkeys(in_turn))[:top_k]
            picked += [e for e in recent if e not in picked][: top_k - len(picked)]
            recent = picked + [e for e in recent if e not in picked]
            plan[layer, token] = picked
    return plan


def _row(recorded: Recorded, layer: int, step: int, lot: int, experts: int) -> list[int]:
    chosen = recorded.steps[step % len(recorded.steps)].get(layer, ())
    return [(e + lot * recorded.experts) % experts for e in chosen]


def demo_routing(tokens: int) -> Recorded:
    """The demo model's own routing while it writes `tokens` tokens: sampled, for greedily it would repeat itself."""
    with tempfile.TemporaryDirectory(prefix="mtpd-bench-") as directory:
        recording = Path(directory) / "routing"
        with serving("demo", "--pool", "100%", "--record-routing", str(recording)) as service:
            service.answer(service.prompt(8), tokens + 1, sampling=Sampling(temperature=0.8, seed=7))
        return read_recorded(recording)
