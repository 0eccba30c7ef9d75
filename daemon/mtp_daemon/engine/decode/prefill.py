"""The prompt, in chunks, before the first round."""

from collections.abc import Callable, Iterator

import mlx.core as mx

from mtp_daemon.engine.decode.request import RequestState
from mtp_daemon.engine.mtp.hidden import chosen_rows
from mtp_daemon.engine.stream import PROMPT

Progress = Callable[[int, int], None]
Cancelled = Callable[[], bool]


def chunk_bounds(tokens: int, chunk: int) -> Iterator[tuple[int, int]]:
    """`(start, end)` of each chunk of `tokens` prompt tokens; none is a single token unless `tokens` is 1.

    Some models take another path for a single token (deepseek_v3's attention, a rotating cache past its window), so
    that chunkings agree bit for bit only where each chunk has more than one: a lone last token joins the chunk before.
    """
    chunk = max(2, chunk)
    start = 0
    while start < tokens:
        end = min(start + chunk, tokens)
        if tokens - end == 1:
            end = tokens
        yield start, end
        start = end


def prefill(state: RequestState, prompt: int, progress: Progress, cancelled: Cancelled) -> bool:
    """Feed all of `state.history` but its last token, which the first round feeds; False when cancelled between chunks.

    The prompt's first `prompt` - 1 tokens go in chunks, as mlx-lm's `generate_step` splits it; its last token and the
    tokens delivered before a restart go one at a time, exactly as the rounds fed them. No logits are computed: the
    first round computes its own. The head's cache takes up each chunk's rows (no expert is read for that).
    """
    total = len(state.history)
    progress(0, total)
    bounds = list(chunk_bounds(prompt - 1, state.settings.chunk))
    bounds += [(i, i + 1) for i in range(prompt - 1, total - 1)]
    for start, end in bounds:
        if cancelled():
            return False
        _feed(state, start, end)
        progress(end, total)
    progress(total, total)
    return True


def _feed(state: RequestState, start: int, end: int) -> None:
    tokens = state.history[start:end]
    with state.target.stream.forward(tokens, PROMPT):
        rows = state.target.trunk.hidden(mx.array([tokens]), state.caches)
        if state.head is not None:
            state.head.take(state.history[start + 1 : end + 1], chosen_rows(rows, state.target.hidden))
            state.head.absorb(all_rows=end < len(state.history) - 1)
        mx.eval([c.state for c in state.caches], state.head.arrays if state.head is not None else [])
    state.target.stream.settle()
    mx.clear_cache()
