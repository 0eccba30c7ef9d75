"""Where recorded routing of real models lies on this machine, and made-up routing for properties.

The recordings are not part of the project: `MTPD_TRACES` names their folder, or they lie in a folder beside the
repository. Tests that want them skip with a reason where they are absent.
"""

import os
import random
from pathlib import Path

import pytest

from mtp_loader.policy.interface import Event, key_of

_ROOT = Path(__file__).resolve().parents[2]
QWEN = "qwen3-30b.route.csv"
GPT_OSS = "gpt-oss-120b.route.csv"


def trace_path(name: str) -> Path:
    """The recording `name`, or the test skips."""
    folder = Path(os.environ.get("MTPD_TRACES") or _ROOT.parent / "shared" / "traces")
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no recorded routing at {path} (set MTPD_TRACES)")
    return path


def made_up_events(forwards: int, layers: int, experts: int, top_k: int, seed: int, skew: float = 4.0) -> list[Event]:
    """Skewed routing whose favourites drift; for properties and speed only, never for comparing policies."""
    rng = random.Random(seed)
    favourites = [rng.sample(range(experts), experts) for _ in range(layers)]
    events = []
    for forward in range(forwards):
        for layer in range(layers):
            if forward % 16 == 15:
                rng.shuffle(favourites[layer])
            chosen: set[int] = set()
            while len(chosen) < top_k:
                chosen.add(favourites[layer][min(int(rng.expovariate(skew / experts)), experts - 1)])
            events.append(Event(layer, tuple(sorted(key_of(layer, e) for e in chosen))))
    return events
