"""Every way back: exceptions, cancels, rotating windows, snapshots, the state's precision."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from mlx_lm.models.gated_delta import compute_g

from mtp_daemon.engine.decode import gated_delta as module
from mtp_daemon.engine.decode.decoder import Decoder
from mtp_daemon.engine.decode.gated_delta import DeltaCache, recording_deltas
from mtp_daemon.engine.decode.rollback import Snapshot, one_at_a_time
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.errors import EngineBug, EnvironmentFailed, RequestRefused
from mtp_daemon.engine.sampling import Chooser
from mtp_protocol.sampling import Sampling
from support.decoding import (
    Scripted,
    assert_like_fresh,
    assert_same_caches,
    contents,
    decoder,
    oracle,
    prompt_of,
    reference,
    right_then_wrong,
    run,
    scripted,
    target,
    wrong,
)


class DiskGone(EnvironmentFailed):
    pass


@pytest.mark.parametrize("where", ["trunk", "logits", "judge", "settle", "head"])
@pytest.mark.parametrize("way", ["chain", "tree", "rescue"])
@pytest.mark.parametrize("verify", ["batch", "step"])
def test_an_error_anywhere_in_a_round_takes_it_back(
    where: str, way: str, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State after the failed round is that before it, so that the round can be asked for again."""
    on, prompt = target("qwen3_next", head=True), prompt_of(9)
    answer = reference(on, prompt, 12)
    decoding = decoder(on, prompt, speculation=way, depth=3, verify=verify)
    run(decoding, 4)
    state = decoding._state
    place = {
        "trunk": (on.trunk.layers[3].mlp.__class__, "__call__"),
        "logits": (on.trunk.__class__, "logits"),
        "judge": (state.chooser.__class__, "judge"),
        "settle": (on.stream.__class__, "settle"),
        "head": (on.head.__class__, "step"),  # type: ignore[union-attr]
    }[where]

    def fails(*_: Any, **__: Any) -> Any:
        raise DiskGone("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(*place, fails)
        with pytest.raises(DiskGone):
            decoding.round(8)
    assert not decoding.broken
    assert_like_fresh(decoding)
    assert list(decoding.history) == [*prompt, *answer[:4]]
    assert run(decoding, 8, assert_like_fresh) == answer[4:]


def test_an_error_in_a_rescue_loses_no_committed_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first verify of the round is committed by then; its tokens must reach the caller."""
    on, prompt = target("qwen3_next"), prompt_of(9)
    answer = reference(on, prompt, 12)
    decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), right_then_wrong(1), "rescue"), depth=4)
    calls: list[int] = []
    plain = Chooser.judge

    def fails_second(self: Chooser, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise DiskGone("the disk is gone")
        return plain(self, *args)

    monkeypatch.setattr(Chooser, "judge", fails_second)
    ids = list(decoding.round(12).ids)
    assert len(calls) == 2 and ids == answer[:2]
    assert_like_fresh(decoding)
    assert ids + run(decoding, 10) == answer


def test_an_interrupt_between_verify_and_commit_takes_the_round_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no Exception (a stop signal while the verify runs)."""
    on, prompt = target("qwen3_next", head=True), prompt_of(9)
    decoding = decoder(on, prompt, depth=2)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoding.round(8)
    assert_like_fresh(decoding)


def test_an_error_that_cannot_be_taken_back_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain round over a rotating window takes no copies: after an error the request is over, and says so."""
    on, prompt = target("gpt_oss"), prompt_of(20)
    decoding = decoder(on, prompt, depth=0)
    monkeypatch.setattr("mtp_daemon.engine.decode.decoder.Pipeline.possible", lambda self: False)
    with monkeypatch.context() as patch:
        patch.setattr(on.trunk.__class__, "logits", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decoding.round(1)
    assert decoding.broken
    with pytest.raises(EngineBug):
        decoding.round(1)


def test_cancelled_between_chunks() -> None:
    """A cancelled prefill says so and is not decoded from."""
    on, prompt = target("qwen3_next"), prompt_of(30)
    decoding = Decoder(on, DecodeSettings(chunk=8), prompt, Sampling())
    seen: list[int] = []
    assert not decoding.prefill(lambda done, total: seen.append(done), lambda: len(seen) > 2)
    assert seen == [0, 8, 16]
    with pytest.raises(EngineBug):
        decoding.round(1)


@pytest.mark.parametrize("script", [wrong, oracle, right_then_wrong(1)])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_three_times_around_a_window_of_8(script: Any, depth: int) -> None:
    """A rotating cache that were trimmed past its window would have lost rows; `trim` says it could."""
    on, prompt = target("gpt_oss"), prompt_of(5)
    answer = reference(on, prompt, 24)
    decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), script), depth=depth)
    assert run(decoding, 24) == answer
    assert decoding.stats()["verify"].startswith("step")


def test_200_rounds_of_3_through_a_rotating_cache() -> None:
    """The window stays the window, and the tokens REF's."""
    on, prompt = target("gpt_oss"), prompt_of(5)
    answer = reference(on, prompt, 400)
    decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), right_then_wrong(1)), depth=2)

    def bounded(_: Any) -> None:
        windows = [c for c in decoding._state.caches if isinstance(c, RotatingKVCache)]
        assert windows and all(c.keys.shape[2] <= c.max_size for c in windows)

    assert run(decoding, 400, bounded) == answer
    assert decoding.stats()["rounds"] == 200


def test_batch_on_a_rotating_cache_is_refused() -> None:
    """Asking for what cannot be exact is the user's mistake, told before anything runs."""
    with pytest.raises(RequestRefused, match="verify_mode = batch is not exact"):
        decoder(target("gpt_oss"), prompt_of(5), drafter=Scripted([], 5, oracle), verify="batch")


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe", "gpt_oss", "qwen3_moe"])
def test_a_snapshot_restored_after_5_tokens_has_its_bits(family: str) -> None:
    """Also where a cache is written in place: a snapshot that shared the array object would change with it."""
    on = target(family)
    caches = on.trunk.make_cache()
    on.trunk.hidden(mx.array([prompt_of(12)]), caches)
    before = [contents(c) for c in caches]
    with Snapshot(caches, batch=False, rows=1) as snapshot:
        for token in range(5):
            mx.eval(on.trunk.hidden(mx.array([[token]]), caches).post)
            snapshot.mark()
    after = [contents(c) for c in caches]
    for a, b in zip(before, after, strict=True):
        assert [x.tobytes() for x in a] == [x.tobytes() for x in b]


@pytest.mark.parametrize("quant", [None, "q4g32", "q4g32/bf16"])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_recorded_layers_have_the_bits_of_mlx_lms_own(family: str, quant: str | None) -> None:
    """The recorded forward is the layer's own: hidden rows, window and state bit for bit, each position's too."""
    on = target(family, quant=quant)
    tokens = mx.array([prompt_of(5, 3)])
    prompt = mx.array([prompt_of(7)])
    plain, recorded = on.trunk.make_cache(), on.trunk.make_cache()
    layers = recording_deltas(on.trunk.model)
    recorded = [DeltaCache(2) if isinstance(c, ArraysCache) else c for c in recorded]
    assert layers == sum(isinstance(c, DeltaCache) for c in recorded)
    for caches in (plain, recorded):
        on.trunk.hidden(prompt, caches)
    with Snapshot(recorded, batch=True, rows=1) as snapshot:
        a = on.trunk.hidden(tokens, plain).post
        b = on.trunk.hidden(tokens, recorded).post
        assert np.array(a.astype(mx.float32)).tobytes() == np.array(b.astype(mx.float32)).tobytes()
        assert_same_caches(recorded, plain)
        snapshot.commit(3, 5)
    short = on.trunk.make_cache()
    on.trunk.hidden(prompt, short)
    on.trunk.hidden(tokens[:, :3], short)
    assert_same_caches(recorded, short)


def test_the_recurrent_state_stays_float32_for_512_steps() -> None:
    """Bf16 weights; the state against the same recurrence in float64, inputs being the layer's own."""
    on = target("qwen3_next", quant="q4g32/bf16")
    recording_deltas(on.trunk.model)
    decoding = decoder(on, prompt_of(4), drafter=Scripted([], 4, oracle), depth=0)
    steps: list[tuple[Any, ...]] = []
    plain = module.gated_delta_update

    def tapped(q: Any, k: Any, v: Any, a: Any, b: Any, a_log: Any, dt: Any, state: Any, mask: Any, **kw: Any) -> Any:
        out = plain(q, k, v, a, b, a_log, dt, state, mask, **kw)
        if not steps or steps[-1][-1] is state or state is first[0]:
            steps.append((k, v, compute_g(a_log, a, dt), mx.sigmoid(b), out[1]))
        return out

    cache = decoding._state.caches[0]
    first = [cache.cache[1]]
    exact = np.array(first[0], dtype=np.float64)
    module.gated_delta_update = tapped  # type: ignore[assignment]
    try:
        for i in range(128):
            with Snapshot(decoding._state.caches, batch=True, rows=1) as snapshot:
                rows = on.trunk.hidden(mx.array([prompt_of(4, i)]), decoding._state.caches)
                mx.eval(rows.post, cache.cache)
                snapshot.commit(4, 4)
    finally:
        module.gated_delta_update = plain
    assert len(steps) == 512
    for step in steps:
        exact = _exact_step(exact, *step[:-1])
    state = cache.cache[1]
    assert state.dtype == mx.float32
    assert np.abs(np.array(state) - exact).max() < 1e-4


def _exact_step(state: Any, k: Any, v: Any, decay: Any, beta: Any) -> Any:
    """One step of the gated delta rule in float64; k [1, 1, Hk, D], v [1, 1, Hv, D], state [1, Hv, Dv, Dk]."""
    k, v, decay, beta = (np.array(x.astype(mx.float32), dtype=np.float64)[0, 0] for x in (k, v, decay, beta))
    k = np.repeat(k, v.shape[0] // k.shape[0], axis=0)
    state = state[0] * decay[:, None, None]
    delta = (v - np.einsum("hvk,hk->hv", state, k)) * beta[:, None]
    return (state + np.einsum("hv,hk->hvk", delta, k))[None]


def test_which_caches_go_one_at_a_time() -> None:
    """A cache that cannot go back inside a batch is named; one nobody knows is refused."""
    assert one_at_a_time([KVCache(), DeltaCache(2)]) is None
    assert "RotatingKVCache" in str(one_at_a_time([KVCache(), RotatingKVCache(8)]))
    with pytest.raises(RequestRefused, match="object"):
        one_at_a_time([object()])


def test_a_tree_over_a_rotating_cache_verifies_its_first_path() -> None:
    """Rows side by side need caches that can be widened; else the tree's first path goes alone, and is exact."""
    on, prompt = target("gpt_oss"), prompt_of(9)
    answer = reference(on, prompt, 12)

    class Tree:
        def draft(self, source: Any, depth: int) -> Any:
            at = len(source.history) - len(prompt)
            true = answer[at : at + depth]
            return scripted(true, [1] * len(true), together=True) if true else None

    decoding = decoder(on, prompt, drafter=Tree(), depth=2)
    assert run(decoding, 12) == answer
    assert decoding.stats()["rounds"] == 4
