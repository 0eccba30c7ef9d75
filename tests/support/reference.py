"""What plain mlx-lm gives: the judge of everything that streams."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from mtp_daemon.engine.stream import DECODE, PROMPT


def reference_logits(path: Path, chunks: Sequence[Sequence[int]]) -> list[Any]:
    """Logits (as bytes-comparable numpy arrays) of each chunk fed to plain mlx-lm, all experts resident."""
    model, _ = load_model(path)
    cache = make_prompt_cache(model)
    results = []
    for chunk in chunks:
        logits = model(mx.array([list(chunk)]), cache=cache).astype(mx.float32)
        results.append(np.array(logits))
    return results


def streamed_logits(served: Any, chunks: Sequence[Sequence[int]]) -> list[Any]:
    """The same from a model whose experts stream."""
    trunk, stream = served.loaded.trunk, served.stream
    cache = trunk.make_cache()
    results = []
    for chunk in chunks:
        with stream.forward(list(chunk), DECODE if len(chunk) == 1 else PROMPT):
            rows = trunk.hidden(mx.array([list(chunk)]), cache)
            logits = trunk.logits(rows.post).astype(mx.float32)
        results.append(np.array(logits))
        stream.settle()
    return results
