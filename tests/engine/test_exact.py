"""Streamed equals resident, bit for bit: every family, packed or not, every kind of weight, every size of pool."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtp_daemon.engine.stream import DECODE, PROMPT, StreamSettings
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from support.checkpoints import make_checkpoint
from support.families import FAMILIES
from support.reference import greedy_reference, greedy_streamed, reference_logits, streamed_logits

PROMPT_IDS = [5, 9, 200, 17, 3, 44, 301, 8, 90, 511, 6, 77]
CHUNKS = (PROMPT_IDS, [12], [400], [7], [7, 8, 9], [1])
SHARES = (0.0, 0.25, 0.5, 1.0)  # of all experts' slots; 0 is the minimum


def checkpoint(directory: Path, family: str, quant: str | None, packed: bool, **more: Any) -> Path:
    path = make_checkpoint(directory / "m", family, quant=quant, **more)
    if packed:
        # "keep": otherwise bf16 scales become float32 ones on this backend, which is another model than the reference
        pack(path, directory / "packed", PackSettings(scales="keep"), lambda line: None)
        return directory / "packed"
    return path


def assert_equal(got: list[Any], want: list[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def _matrix() -> list[Any]:
    """Family x packed x share; by default each pair of values meets at least once."""
    cases = []
    for f, family in enumerate(FAMILIES):
        for p, packed in enumerate((False, True)):
            for s, share in enumerate(SHARES):
                chosen = (f + p + s) % 2 == 0 if f < 2 else (f + 2 * p + s) % 4 == 0
                marks = () if chosen else pytest.mark.full
                cases.append(pytest.param(family, packed, share, marks=marks))
    return cases


@pytest.mark.parametrize(("family", "packed", "share"), _matrix())
def test_tokens_and_logits_equal_plain_mlx_lm(
    family: str, packed: bool, share: float, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """Any size of pool from the minimum up: a slot overwritten too early, a row put in the wrong place, a sum in
    another order would change bits. Every slot is hashed at use in the quarter pools.
    """
    path = checkpoint(tmp_path, family, "q4g64", packed)
    served = serve(path, share, settings=StreamSettings(verify_slots=share == 0.25))
    assert_equal(streamed_logits(served, CHUNKS), reference_logits(tmp_path / "m", CHUNKS))
    assert greedy_streamed(served, PROMPT_IDS, 8) == greedy_reference(tmp_path / "m", PROMPT_IDS, 8)
    assert not served.loader.errors
    stats = served.stream.stats
    assert (stats.slots_verified > 50) == (share == 0.25)
    assert stats.misses == len(served.loader.reads)


@pytest.mark.parametrize(
    ("family", "quant"),
    [
        ("qwen3_moe", None),
        ("qwen3_next", "q8g32"),
        ("glm4_moe", "mixed"),
        ("qwen3_5_moe", "mixed"),
        ("gpt_oss", "mxfp4"),
        ("deepseek_v3", "mxfp8"),
        ("qwen3_moe", "nvfp4"),
        ("gpt_oss", "q4g64/bf16"),
        pytest.param("gpt_oss", None, marks=pytest.mark.full),
        pytest.param("qwen3_next", "q3g64", marks=pytest.mark.full),
        pytest.param("qwen3_next", "q5g64", marks=pytest.mark.full),
        pytest.param("qwen3_next", "q2g128", marks=pytest.mark.full),
        pytest.param("deepseek_v3", "nvfp4", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.full)])
def test_every_kind_of_weight(
    family: str, quant: str | None, packed: bool, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """Mixed bits (banks of several geometries), modes without biases, a bias an expert, bf16 and float32."""
    path = checkpoint(tmp_path, family, quant, packed)
    served = serve(path, 0.4, settings=StreamSettings(verify_slots=True))
    assert_equal(streamed_logits(served, CHUNKS), reference_logits(tmp_path / "m", CHUNKS))
    assert served.stream.stats.slots_verified
    if quant == "mixed":
        assert len(served.stream.geometry.banks) > 1


def test_bf16_experts_are_widened_and_the_stream_of_rows_stays_bf16(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """MLX's CPU backend gathers float32 only. A residual stream turned into float32 would be 5 % off; here the
    hidden rows stay bf16 and lie where float32 experts put them, to bf16's own precision.
    """
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="bf16")
    served = serve(path, 0.25, settings=StreamSettings(verify_slots=True))
    trunk = served.loaded.trunk
    with served.stream.forward(PROMPT_IDS, PROMPT):
        rows = trunk.hidden(mx.array([PROMPT_IDS]), trunk.make_cache())
        assert rows.post.dtype == mx.bfloat16
        got = np.array(rows.post.astype(mx.float32))
    want = _bf16_reference(path)
    assert np.abs(got - want).max() <= 0.03 * np.abs(want).max()
    assert served.stream.stats.slots_verified


def _bf16_reference(path: Path) -> Any:
    """The same checkpoint in float32 throughout: what bf16 approximates."""
    from mlx_lm.utils import load_model

    model, _ = load_model(path, lazy=True)
    model.update({})
    model.load_weights([(k, v.astype(mx.float32)) for k, v in tree_flatten(model.parameters())])
    return np.array(model.model(mx.array([PROMPT_IDS])))


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_moe", pytest.param("glm4_moe", marks=pytest.mark.full)])
def test_any_chunking_gives_the_same_state(family: str, tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Chunks of 1, 2, 3, 4, 5, 63, 64 and 65 tokens: the same caches and logits, through a quarter pool."""
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    served = serve(path, 0.25)
    ids = [(7 * i * i + 3 * i) % 500 for i in range(67)]
    states = []
    for size in (67, 1, 2, 3, 4, 5, 63, 64, 65):
        cache = served.loaded.trunk.make_cache()
        for start in range(0, len(ids), size):
            chunk = ids[start : start + size]
            with served.stream.forward(chunk, PROMPT):
                rows = served.loaded.trunk.hidden(mx.array([chunk]), cache)
                mx.eval(rows.post)
            served.stream.settle()
        arrays = [a for _, a in tree_flatten([c.state for c in cache]) if isinstance(a, mx.array)]
        states.append([np.array(rows.post[:, -1]), *(np.array(a) for a in arrays)])
    for state in states[1:]:
        assert_equal(state, states[0])


def test_a_prompt_through_the_smallest_pool_asks_for_each_expert_once(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """64 tokens need every expert of a layer; the pool holds two. Waves: every expert is read once a layer."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, 0.0)
    ids = [(7 * i * i + 3 * i) % 500 for i in range(64)]
    assert_equal(streamed_logits(served, [ids]), reference_logits(path, [ids]))
    asked = [(n.layer, e) for n in served.loader.needs for e in n.experts]
    assert len(asked) == len(set(asked)) == len(served.loader.reads) == served.stream.stats.misses
    assert served.stream.stats.waves >= 3 * 4
    for _ in range(3):  # decoding goes on in the same pool
        assert_equal(streamed_logits(served, [ids, [3]]), reference_logits(path, [ids, [3]]))


@pytest.mark.parametrize("slots", [2, 3, 4, 5, 7, 8, 11, 13])
@pytest.mark.parametrize("lazy", [False, True])
def test_waves_of_every_size(
    slots: int, lazy: bool, tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools between one wave and a layer: hits that leave no room, waves read while others are computed.

    `lazy` is the worst scheduler: what was started has not run before someone waits for it. A slot given up without
    that wait is overwritten first and read afterwards, every time and not once in a while.
    """
    if lazy:
        monkeypatch.setattr(mx, "async_eval", lambda *arrays: None)
    path = make_checkpoint(tmp_path / "m", "gpt_oss", quant="q4g64")
    served = serve(path, slots={0: slots})
    ids = [(7 * i * i + 3 * i) % 500 for i in range(40)]
    chunks = (ids[:5], ids[5:6], ids[6:40], [1], [2, 3])
    assert_equal(streamed_logits(served, chunks), reference_logits(path, chunks))
    assert not served.loader.errors


def test_recalls_of_everything_at_any_time_change_nothing(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """A loader that wants every slot back after each demand (the worst of all policies) costs reads, not bits."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64")
    served = serve(path, 1.0, settings=StreamSettings(verify_slots=True))
    served.loader.recall_all_after = 2
    assert_equal(streamed_logits(served, CHUNKS), reference_logits(path, CHUNKS))
    assert sum(len(r.slots) for r in served.loader.released) > 20


def test_rows_of_a_batch_stream_too(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Several rows in one forward (a tree of drafts): each row's bits are those of its own forward."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    served = serve(path, 0.25)
    rows = [[5, 6, 7], [5, 9, 8], [400, 1, 2]]
    with served.stream.forward([t for row in rows for t in row], DECODE):
        trunk = served.loaded.trunk
        got = np.array(trunk.logits(trunk.hidden(mx.array(rows), trunk.make_cache()).post))
    served.stream.settle()
    for row, logits in zip(rows, got, strict=True):
        np.testing.assert_array_equal(logits[None], reference_logits(path, [row])[0])
