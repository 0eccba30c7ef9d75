"""The head against its numpy reference: one step, chained steps, priming; and its precision."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.draft.interface import DraftSource
from mtp_daemon.engine.draft.ways import make_drafter
from mtp_daemon.engine.mtp.head import MtpHead, head_args
from support.checkpoints import make_head_weights
from support.decoding import decoder, prompt_of, reference, run, target
from support.families import config_of, sizes_of
from support.head_reference import ReferenceHead

FAMILIES = ("qwen3_next", "qwen3_5_moe")


def _reference(family: str) -> ReferenceHead:
    weights = {k: np.array(v) for k, v in make_head_weights(family).items()}
    return ReferenceHead(weights, sizes_of(config_of(family)))


def _numpy(array: mx.array) -> Any:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def _primed(family: str, prompt: list[int], hidden: str = "post_norm") -> tuple[ReferenceHead, Any, Any]:
    """The reference after every pair of the prompt; its last `out`, and the embedding table."""
    on = target(family, head=True)
    rows = on.trunk.hidden(mx.array([prompt[:-1]]), on.trunk.make_cache())
    chosen = _numpy(rows.post if hidden == "post_norm" else rows.pre)[0]
    table = _numpy(on.trunk.embed(mx.arange(512)[None]))[0]
    judge = _reference(family)
    out = None
    for token, row in zip(prompt[1:], chosen, strict=True):
        out = judge.feed(table[token], row)
    return judge, out, table


def _logits(family: str, out: Any) -> Any:
    on = target(family, head=True)
    return _numpy(on.trunk.logits(mx.array(out[None, None].astype(np.float32))))[0, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_chained_drafts_are_the_references(family: str) -> None:
    """Three chained drafts, each fed back with `out` after the last norm. The first equals the teacher-forced
    one, so the cache was primed with the prompt shifted by one. The order in fc, a norm shifted or left out, the gate
    of the attention, an expert's weight: each gives other tokens.
    """
    prompt = prompt_of(12, 5)
    judge, out, table = _primed(family, prompt)
    expected = []
    for _ in range(3):
        expected.append(int(_logits(family, out).argmax()))
        out = judge.feed(table[expected[-1]], out)
    state = decoder(target(family, head=True), prompt, chunk=5)._state
    drafted = make_drafter("chain", tau=0.0, width=1).draft(DraftSource(state.head, state.chooser, prompt), 3)
    assert drafted is not None
    assert list(drafted.paths()[0].tokens) == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("hidden", ["post_norm", "pre_norm"])
def test_a_steps_rows_are_the_references(family: str, hidden: str) -> None:
    """The numbers, not only the winning token: each row of a whole prompt within float32's reach."""
    on, prompt = target(family, head=True), prompt_of(10, 6)
    assert on.head is not None
    judge = _reference(family)
    rows = on.trunk.hidden(mx.array([prompt[:-1]]), on.trunk.make_cache())
    chosen = rows.post if hidden == "post_norm" else rows.pre
    embedded = on.trunk.embed(mx.array([prompt[1:]]))
    out = _numpy(on.head.step(on.head.join(embedded, chosen), on.head.make_cache()))[0]
    for ours, e, h in zip(out, _numpy(embedded)[0], _numpy(chosen)[0], strict=True):
        np.testing.assert_allclose(ours, judge.feed(e, h), rtol=1e-4, atol=1e-4)


def test_the_caches_length_follows_the_rule() -> None:
    """Cached + waiting == tokens fed; after prefill all but the last pair are cached."""
    for length in (1, 2, 3, 9):
        track = decoder(target("qwen3_next", head=True), prompt_of(length))._state.head
        assert track is not None
        assert track.cache.offset == max(0, length - 2)
        assert track.cache.offset + track.waiting == length - 1


def test_rows_that_wait_are_taken_up_in_batches() -> None:
    """A long plain stretch does not keep every hidden row: the waiting rows stay bounded, and aligned."""
    on = target("qwen3_next", head=True)
    decoding = decoder(on, prompt_of(5), depth=2)
    track = decoding._state.head
    assert track is not None
    for count in range(150):
        token = [count % 512]
        hidden = on.trunk.hidden(mx.array([token]), on.trunk.make_cache()).post
        known = track.cache.offset + track.waiting
        track.take(token, hidden)
        assert track.cache.offset + track.waiting == known + 1
        assert track.waiting <= 65
    assert track.cache.offset > 64


def test_priming_runs_no_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priming and re-feeding need keys and values only: with one layer, reading an expert for them would be waste."""
    on = target("qwen3_next", head=True)
    assert on.head is not None
    calls: list[int] = []
    block = on.head.layers[0].mlp.__class__
    plain = block.__call__

    def counted(self: Any, x: mx.array) -> mx.array:
        if self is on.head.layers[0].mlp:  # type: ignore[union-attr]
            calls.append(x.shape[1])
        return plain(self, x)

    monkeypatch.setattr(block, "__call__", counted)
    decoding = decoder(on, prompt_of(20), depth=3, chunk=6)
    assert calls == []
    decoding.round(10)
    assert calls == [1, 1, 1]


def test_a_4_bit_head_is_near_the_bf16_one() -> None:
    """Cosine of the logits above 0.95, and no activation in float16."""
    on, prompt = target("qwen3_next", head=True), prompt_of(12, 3)
    rows = on.trunk.hidden(mx.array([prompt[:-1]]), on.trunk.make_cache())
    assert on.head is not None
    plain = on.head
    coarse = MtpHead(head_args(on.trunk.model))
    coarse.load_weights(list(make_head_weights("qwen3_next").items()))
    coarse.set_dtype(mx.bfloat16)
    nn.quantize(coarse, group_size=64, bits=4)
    embedded = on.trunk.embed(mx.array([prompt[1:]]))
    logits = []
    for head in (plain, coarse):
        out = head.step(head.join(embedded, rows.post), head.make_cache())
        assert out.dtype in (mx.float32, mx.bfloat16)
        logits.append(_numpy(on.trunk.logits(out))[0])
    a, b = logits
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    assert cosine.min() > 0.95


def test_hardly_any_acceptance_is_told() -> None:
    """A random head agrees about never; after enough drafts the stats say so in a line."""
    decoding = decoder(target("qwen3_next", head=True), prompt_of(8), depth=1)
    for rounds in range(60):
        decoding.round(2)
        judged = decoding.stats()["offered_by_position"][0]
        assert ("warning" in decoding.stats()) == (judged >= 40), rounds
    assert "may not belong" in decoding.stats()["warning"]


def test_settings_are_checked() -> None:
    """Each knob refuses what is out of its range, by name."""
    for name, value in {
        "depth": -1,
        "chunk": 0,
        "tau": 1.5,
        "width": 0,
        "speculation": "luck",
        "verify": "never",
    }.items():
        with pytest.raises(ValueError, match=name):
            DecodeSettings(**{name: value})  # type: ignore[arg-type]


def test_pre_norm_rows_change_no_token() -> None:
    """Which rows feed the head never changes the output, only how often a draft is right."""
    plain, prompt = target("qwen3_next", head=True), prompt_of(7)
    decoding = decoder(replace(plain, hidden="pre_norm"), prompt, depth=3)
    assert run(decoding, 9) == reference(plain, prompt, 9)
