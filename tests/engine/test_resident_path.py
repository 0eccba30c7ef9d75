"""With everything resident: no host read, no message, and the same bits; what is reported, and what hints say."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from mtp_daemon.engine.stream import DECODE, PROMPT, StreamSettings
from mtp_protocol.expert_messages import Recall
from support.checkpoints import make_checkpoint
from support.families import FAMILIES
from support.reference import reference_logits, streamed_logits
from support.waiting import until

CHUNKS = ([5, 9, 200, 17] * 10, [12], [400], [7])


def fill_everything(served: Any) -> None:
    """Have the loader read every expert, and wait until the engine knows."""

    def filled() -> bool:
        for layer in served.stream.geometry.layers:  # again: slots that were recalled may not be free yet
            served.loader.prefetch(layer.layer, tuple(range(layer.experts)))
        served.stream.link.poll()
        return bool(served.stream.all_resident)

    until("every expert is resident", filled)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resident_forward_reads_nothing_on_the_host_and_says_nothing(
    family: str, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """The whole forward is built lazily; no Need is sent and nothing is read from disk; the bits are mlx-lm's."""
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    served = serve(path, 1.0)
    fill_everything(served)
    reads = len(served.loader.reads)
    for want, got in zip(reference_logits(path, CHUNKS), streamed_logits(served, CHUNKS), strict=True):
        np.testing.assert_array_equal(got, want)
    stats = served.stream.stats
    assert stats.host_reads == stats.demands == stats.misses == 0
    assert len(served.loader.reads) == reads and not served.loader.needs
    moe_layers = len(served.stream.geometry.layers)
    assert stats.hits >= moe_layers * (4 + 2 * 3), "four tokens' experts, then top-2 a layer and token"


def test_the_next_forward_may_be_built_before_the_last_is_read(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Two forwards in flight: slots of both are kept until both have ended, whatever is recalled meanwhile."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, 1.0)
    fill_everything(served)
    trunk, stream, cache = served.loaded.trunk, served.stream, served.loaded.trunk.make_cache()
    with stream.forward([5], DECODE):
        first = mx.argmax(trunk.logits(trunk.hidden(mx.array([[5]]), cache).post)[:, -1], axis=-1)
    with stream.forward(range(1), DECODE):
        second = trunk.logits(trunk.hidden(first[None], cache).post)
    served.loader.order(Recall(0, tuple(range(24))))

    def recalled() -> bool:
        stream.link.poll()
        return bool(stream.residency.recalls_pending)

    until("the recall arrives", recalled)
    assert stream.residency.resident == 24 and not served.loader.released
    assert not stream.all_resident
    stream.settle()
    assert stream.residency.resident == 0
    os.pwrite(served.region_fd, b"\xff" * served.loader.layout.nbytes, 0)  # what was given up may be overwritten
    want = reference_logits(path, [[5], [int(first)]])
    np.testing.assert_array_equal(np.array(second), want[1])
    assert stream.stats.host_reads == 0
    np.testing.assert_array_equal(streamed_logits(served, [[5]])[0], want[0])  # and now from the disk again


def test_a_slot_map_on_the_device_follows_the_map(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Experts come back in other slots: a table kept on the device for too long would read the old ones."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, 1.0)
    want = reference_logits(path, CHUNKS)
    for turn in range(3):
        fill_everything(served)
        for a, b in zip(want, streamed_logits(served, CHUNKS), strict=True):
            np.testing.assert_array_equal(a, b)
        assert served.stream.stats.host_reads == 0
        served.loader.order(Recall(0, tuple(range(turn, 24))))
        until = time.monotonic() + 20
        while served.stream.residency.resident != turn or len(served.loader._banks[0].free) != 24 - turn:
            assert time.monotonic() < until
            served.stream.settle()
        served.loader._banks[0].free.reverse()


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_used_tells_what_was_routed_and_the_counts_add_up(
    share: float, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """Per layer and token the ids and weights of plain mlx-lm's router; hits + misses == requests."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, share)
    if share == 1.0:
        fill_everything(served)
    streamed_logits(served, CHUNKS)
    served.stream.report()  # what the next forward would have done
    until("the loader hears of every forward", lambda: len(served.loader.used) == len(CHUNKS))
    want = _routing(path)
    for i, used in enumerate(served.loader.used):
        assert used.step == i + 1 and used.tokens == tuple(CHUNKS[i])
        assert used.phase == (PROMPT if i == 0 else DECODE)
        distinct = 0
        for (layer, ids, weights), (ref_ids, ref_weights) in zip(used.routing, want[i], strict=True):
            np.testing.assert_array_equal(ids, ref_ids)
            np.testing.assert_allclose(weights, ref_weights, rtol=1e-6)
            distinct += len(set(np.array(ids).ravel().tolist()))
            assert layer in {y.layer for y in served.stream.geometry.layers}
        assert used.hits + used.misses == distinct
    stats = served.stream.stats
    assert stats.hits + stats.misses == sum(u.hits + u.misses for u in served.loader.used)
    assert sum(size * n for union in stats.unions.values() for size, n in union.items()) == stats.hits + stats.misses
    assert (share == 1.0) == (stats.misses == 0)


def _routing(path: Path) -> list[list[tuple[Any, Any]]]:
    """Router ids and weights of each chunk and layer, computed with the plain block's own parts."""
    model, _ = load_model(path)
    seen: list[tuple[Any, Any]] = []
    block_class = type(model.layers[0].mlp)
    plain = block_class.__call__

    def watched(self: Any, x: mx.array) -> Any:
        gates = mx.softmax(self.gate(x), axis=-1, precise=True)
        ids = mx.argpartition(gates, kth=-self.top_k, axis=-1)[..., -self.top_k :]
        weights = mx.take_along_axis(gates, ids, axis=-1)
        seen.append((np.array(ids)[0], np.array(weights / weights.sum(axis=-1, keepdims=True))[0]))
        return plain(self, x)

    cache, results = make_prompt_cache(model), []
    block_class.__call__ = watched
    try:
        for chunk in CHUNKS:
            mx.eval(model(mx.array([chunk]), cache=cache))
            results.append(list(seen))
            seen.clear()
    finally:
        block_class.__call__ = plain
    return results


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_needs_and_used_tell_of_every_layer_once_and_in_order(
    share: float, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """The loader's policy sees each layer of each forward exactly once: in a Need's events, or past `told` in Used."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, share)
    chunks = [[5], [9], [5], [9], [5, 9, 200, 17] * 4, [5]]
    streamed_logits(served, chunks)
    served.stream.report()  # what the next forward would have done
    until("the loader hears of every forward", lambda: len(served.loader.used) == len(chunks))
    want = [
        (layer, len(used.tokens), tuple(sorted({e for row in ids for e in row})))
        for used in served.loader.used
        for layer, ids, _ in used.routing[: used.told]
    ]
    assert [event for need in served.loader.needs for event in need.events] == want
    assert all(len(used.routing) == 3 for used in served.loader.used)
    firsts = [n for n in served.loader.needs if n.events]
    assert all(n.events[-1][0] == n.layer and set(n.experts) <= set(n.events[-1][2]) for n in firsts)
    assert len(firsts) < len(served.loader.needs) if share == 0.0 else len(firsts) == len(served.loader.needs)
    assert served.stream.stats.demands == len(served.loader.needs)


@pytest.mark.parametrize("family", FAMILIES)
def test_hints_name_what_the_next_layers_router_likes(family: str, tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Off by default; when on, they come with the layer's own host read (no more host reads than without them)."""
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    quiet = serve(path, 0.25)
    want = streamed_logits(quiet, CHUNKS[1:])
    served = serve(path, 0.25, settings=StreamSettings(hints_ahead=2))
    for a, b in zip(want, streamed_logits(served, CHUNKS[1:]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert served.stream.stats.host_reads == quiet.stream.stats.host_reads
    assert not quiet.loader.hints and served.loader.hints
    layers = [y.layer for y in served.stream.geometry.layers]
    for hint in served.loader.hints:
        assert 1 <= len(hint.layers) <= 2 and all(layer in layers[1:] for layer, _ in hint.layers)
        for _, experts in hint.layers:
            weights = [w for _, w in experts]
            assert 1 <= len(experts) <= 2 and weights == sorted(weights, reverse=True)
            assert all(0.0 <= w <= 1.0 for w in weights)


def test_messages_and_host_reads_a_token(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Where every expert of a forward is resident but not every expert of the model: one host read a layer, and one
    message (Used) a forward.
    """
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, 0.9)
    for _ in range(3):
        streamed_logits(served, [[5]])
    before = served.stream.stats.host_reads
    sent: list[Any] = []
    send = served.stream.link._socket.send
    served.stream.link._socket.send = lambda message: (sent.append(message), send(message))
    streamed_logits(served, [[5]])
    assert [type(m).__name__ for m in sent] == ["Used"]
    assert served.stream.stats.host_reads - before == 3
