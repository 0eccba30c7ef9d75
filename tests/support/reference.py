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


def greedy_reference(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Tokens of mlx-lm's own `generate_step`, greedy."""
    from mlx_lm.generate import generate_step

    model, _ = load_model(path)
    return [int(token) for token, _ in generate_step(mx.array(list(prompt)), model, max_tokens=count)]


def greedy_streamed(served: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The same from a model whose experts stream: prompt but its last token, then one token at a time."""
    trunk, stream = served.loaded.trunk, served.stream
    cache = trunk.make_cache()
    with stream.forward(list(prompt[:-1]), PROMPT):
        mx.eval(trunk.hidden(mx.array([list(prompt[:-1])]), cache).post)
    token, tokens = prompt[-1], []
    for _ in range(count):
        with stream.forward([token], DECODE):
            logits = trunk.logits(trunk.hidden(mx.array([[token]]), cache).post)
        token = int(mx.argmax(logits[0, -1]))
        stream.settle()
        tokens.append(token)
    return tokens
