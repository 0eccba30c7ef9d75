"""Requests to a real engine process, all of one module to the same one: what it answers, and that it lives on."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from mtp_protocol import engine_messages as e
from mtp_protocol.sampling import Sampling
from support.checkpoints import Head, make_checkpoint
from support.engine_process import EngineProcess, engine_process

PROMPT = [5, 9, 2, 7, 7, 1]
Reference = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("m") / "tiny", "qwen3_next", quant="q4g64", head=Head())


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[EngineProcess]:
    with engine_process(model, share=0.4, settings={"context": 96, "chunk": 16}) as running:
        running.ready()
        yield running


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    """REF: plain mlx-lm, every expert resident, greedy."""
    plain, _ = load_model(model, strict=False)

    def tokens(prompt: list[int], count: int) -> list[int]:
        return [int(t) for t, _ in generate_step(mx.array(prompt), plain, max_tokens=count)]

    return tokens


def check_numbers(finished: e.Finished, prompt: int, answer: int, delivered: int = 0) -> None:
    """Finite, not negative, and they add up."""

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, Mapping):
            for item in value.values():
                yield from numbers(item)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from numbers(item)
        elif isinstance(value, int | float):
            yield float(value)

    stats = finished.stats
    assert all(math.isfinite(n) and n >= 0 for n in numbers(stats))
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (prompt, answer)
    assert finished.usage.cached_tokens == 0
    if "committed" in stats:
        assert stats["committed"] - stats["dropped"] == answer - delivered
        assert stats["committed"] == stats["accepted"] + stats["verifies"]
        assert sum(int(n) * rounds for n, rounds in stats["accepted_lengths"].items()) == stats["committed"]
        assert sum(stats["accepted_by_position"]) == stats["accepted"] <= stats["drafted"]
        assert stats["prefill_s"] + stats["decode_s"] == pytest.approx(stats["total_s"], abs=1e-3)
        assert stats["ttft_s"] <= stats["total_s"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("depth", [0, 3])
def test_exactly_so_many_tokens(engine: EngineProcess, reference: Reference, count: int, depth: int) -> None:
    """Each request after the others gives what it gives alone."""
    ids, _, finished = engine.ask(PROMPT, count, depth=depth)
    assert ids == (reference(PROMPT, count) if count else [])
    assert finished.reason == "length"
    check_numbers(finished, len(PROMPT), count)


def test_a_prompt_over_several_chunks(engine: EngineProcess, reference: Reference) -> None:
    prompt = [(i * 37) % 250 for i in range(50)]
    ids, _, finished = engine.ask(prompt, 12)
    assert ids == reference(prompt, 12)
    check_numbers(finished, 50, 12)
    progress = [m for m in engine.seen if isinstance(m, e.Progress) and m.request == finished.request]
    assert [p.done for p in progress][:3] == [0, 16, 32]
    assert progress[-1].done == progress[-1].total == 50


def test_the_end_of_text_ends_the_answer(engine: EngineProcess, reference: Reference) -> None:
    """A bias makes id 256 the next token at once: reason stop, and it has no text."""
    ids, text, finished = engine.ask(PROMPT, 9, sampling=Sampling(logit_bias={256: 1000.0}))
    assert (ids, text, finished.reason) == ([256], "", "stop")
    check_numbers(finished, len(PROMPT), 1)


def test_a_stop_string_ends_the_answer(engine: EngineProcess, reference: Reference) -> None:
    """The bias makes it say "a" for ever; the stop string takes three tokens."""
    bias = {ord("a"): 1000.0}
    ids, text, finished = engine.ask(PROMPT, 20, stop=("zz", "aaa"), sampling=Sampling(logit_bias=bias))
    assert (ids, text, finished.reason) == ([], "", "stop")
    check_numbers(finished, len(PROMPT), 0)


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0, seed=11), Sampling(repetition_penalty=1.3)], ids=str)
def test_speculation_changes_nothing(engine: EngineProcess, sampling: Sampling) -> None:
    """Seeded, and greedy under a penalty: drafts by another law than plain decoding's would show in the ids."""
    plain, _, _ = engine.ask(PROMPT, 16, sampling=sampling, speculation="off")
    for way, depth in (("chain", 3), ("rescue", 2), ("adaptive", 4)):
        ids, _, finished = engine.ask(PROMPT, 16, sampling=sampling, speculation=way, depth=depth)
        assert ids == plain
        check_numbers(finished, len(PROMPT), 16)


def test_one_requests_way_to_draft_is_not_the_next_ones(engine: EngineProcess) -> None:
    """Depth and speculation named by one request end with it."""
    _, _, own = engine.ask(PROMPT, 8, depth=0)
    _, _, off = engine.ask(PROMPT, 8, speculation="off")
    _, _, after = engine.ask(PROMPT, 8)
    assert own.stats["drafted"] == off.stats["drafted"] == 0
    assert after.stats["depth_over_time"][0][0] == 2


def test_an_unseeded_answer_comes_with_log_probabilities(engine: EngineProcess) -> None:
    request = engine.start(PROMPT, 12, sampling=Sampling(temperature=0.8, top_p=0.9, logprobs=3))
    tokens, finished = engine.answer(request)
    assert isinstance(finished, e.Finished)
    entries = [(i, entry) for m in tokens for i, entry in zip(m.ids, m.logprobs, strict=True)]
    assert len(entries) == 12
    assert all(entry.token == i and entry.logprob <= 0.0 and 1 <= len(entry.top) <= 3 for i, entry in entries)


@pytest.mark.parametrize("delivered", [1, 4, 9])
def test_after_a_crash_the_answer_goes_on(engine: EngineProcess, reference: Reference, delivered: int) -> None:
    whole = reference(PROMPT, 10)
    ids, _, finished = engine.ask(PROMPT, 10, delivered=tuple(whole[:delivered]))
    assert ids == whole[delivered:]
    check_numbers(finished, len(PROMPT), 10, delivered)


def test_an_answer_that_was_whole_before_the_crash_is_finished_at_once(engine: EngineProcess) -> None:
    assert engine.ask(PROMPT, 3, delivered=(1, 2, 3))[2].reason == "length"
    assert engine.ask(PROMPT, 9, delivered=(1, 256))[2].reason == "stop"


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancel_and_ask_again(engine: EngineProcess, reference: Reference, after: int) -> None:
    """Reason cancelled, numbers that add up, and the next answer is as if nothing had been."""
    engine.loader.delay_s = 0.02
    request = engine.start(PROMPT, 80)
    seen = 0
    while seen < after:
        seen += len(engine.read(e.Tokens, where=lambda m: m.request == request).ids)
    engine.send(e.Cancel(request))
    tokens, finished = engine.answer(request)
    engine.loader.delay_s = 0.0
    assert isinstance(finished, e.Finished)
    assert finished.reason == "cancelled"
    check_numbers(finished, len(PROMPT), seen + sum(len(m.ids) for m in tokens))
    assert engine.ask(PROMPT, 8)[0] == reference(PROMPT, 8)


def test_a_second_start_waits_its_turn_and_can_be_cancelled_there(engine: EngineProcess) -> None:
    first, second, third = (engine.start(PROMPT, 6) for _ in range(3))
    engine.send(e.Cancel(second))
    for request, reason in ((first, "length"), (second, "cancelled"), (third, "length")):
        finished = engine.answer(request)[1]
        assert isinstance(finished, e.Finished)
        assert finished.reason == reason


@pytest.mark.parametrize(
    ("prompt", "more", "kind", "named"),
    [
        ([], {}, "bad_request", "empty"),
        ("", {}, "bad_request", "empty"),
        ([1, 512], {}, "bad_request", "512"),
        ([1] * 96, {}, "too_long", "96"),
        ("x" * 1_000_000, {}, "too_long", "at least"),
        ([1], {"speculation": "magic"}, "bad_request", "magic"),
        ([1], {"depth": 99}, "bad_request", "depth"),
        ([1], {"stop": ("",)}, "bad_request", "stop string"),
        ("hi", {"raw": False, "system": "be brief"}, "bad_request", "system"),
        ([1], {"sampling": Sampling(logit_bias={512: 1.0})}, "bad_request", "512"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    engine: EngineProcess, prompt: Any, more: dict[str, Any], kind: str, named: str
) -> None:
    """One Failed with a stable kind, naming the thing."""
    tokens, failed = engine.answer(engine.start(prompt, 5, **more))
    assert isinstance(failed, e.Failed)
    assert (tokens, failed.kind) == ([], kind)
    assert named in failed.text


def test_a_one_token_prompt_is_answered(engine: EngineProcess, reference: Reference) -> None:
    assert engine.ask([3], 4)[0] == reference([3], 4)


def test_the_context_bounds_the_answer(engine: EngineProcess) -> None:
    ids, _, finished = engine.ask([1] * 90, 500)
    assert (len(ids), finished.reason) == (6, "length")


def test_an_expert_that_cannot_be_read_fails_that_request_alone(engine: EngineProcess, reference: Reference) -> None:
    """The file and the offset reach the user, and the next request is right."""
    everything = {(y.layer, x) for y in engine.geometry.layers for x in range(y.experts)}
    engine.loader.fail = everything
    failed = engine.answer(engine.start([11, 12, 13], 30))[1]
    engine.loader.fail = set()
    assert isinstance(failed, e.Failed)
    assert failed.kind == "environment"
    assert "offset 4096" in failed.text
    assert engine.ask([11, 12, 13], 6)[0] == reference([11, 12, 13], 6)


def test_bytes_that_are_no_message_are_counted_and_dropped(engine: EngineProcess) -> None:
    engine.send_bytes(b"\xc1 no message")
    beat = engine.read(e.Beat, where=lambda b: b.facts["bad_messages"] >= 1)
    assert not beat.busy
    assert len(engine.ask(PROMPT, 2)[0]) == 2


def test_beats_go_on_while_mlx_waits_and_show_progress(engine: EngineProcess) -> None:
    """The front must be able to tell a slow engine from a hung one."""
    engine.loader.delay_s = 0.05
    request = engine.start([101, 102, 103, 104], 90)
    beats = [engine.read(e.Beat, where=lambda b: b.busy) for _ in range(3)]
    engine.send(e.Cancel(request))
    engine.answer(request)
    engine.loader.delay_s = 0.0
    assert beats[0].progress < beats[1].progress < beats[2].progress
    assert not engine.loader.errors
