"""Rounds change no token and leave every cache as a fresh prefill would, whatever is drafted and however verified."""

import itertools

import mlx.core as mx
import pytest

from mtp_daemon.engine.depth import RoundTimes
from mtp_daemon.engine.draft.interface import Candidates, DraftSource
from mtp_daemon.engine.errors import EngineBug
from support.decoding import (
    Scripted,
    assert_like_fresh,
    assert_same_caches,
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

WAYS = ("chain", "rescue", "tree")
SCRIPTS = {"oracle": oracle, "wrong": wrong, **{f"right{k}": right_then_wrong(k) for k in (1, 2, 3)}}
WHOLE = list(
    itertools.product(("qwen3_next", "qwen3_5_moe", "qwen3_moe"), WAYS, ("batch", "step"), range(1, 7), SCRIPTS)
)


def _pairwise(rows: list[tuple]) -> list[tuple]:
    """A subset in which every pair of values of two columns occurs."""
    wanted = {((i, r[i]), (j, r[j])) for r in rows for i, j in itertools.combinations(range(len(r)), 2)}
    chosen = []
    while wanted:
        gain = {
            r: len(wanted & {((i, r[i]), (j, r[j])) for i, j in itertools.combinations(range(len(r)), 2)}) for r in rows
        }
        best = max(rows, key=lambda r: gain[r])
        chosen.append(best)
        wanted -= {((i, best[i]), (j, best[j])) for i, j in itertools.combinations(range(len(best)), 2)}
    return chosen


PAIRS = _pairwise(WHOLE)
CASES = [pytest.param(*row, marks=[] if row in PAIRS else pytest.mark.full) for row in WHOLE]


@pytest.mark.parametrize(("family", "way", "verify", "depth", "script"), CASES)
def test_scripted_drafts_change_no_token_and_no_cache(
    family: str, way: str, verify: str, depth: int, script: str
) -> None:
    """A commit off by one, a checkpoint not restored or a wrong branch shows in ids or in a cache's bytes."""
    on, prompt = target(family), prompt_of(11)
    answer = reference(on, prompt, 16)
    drafter = Scripted(answer, len(prompt), SCRIPTS[script], way)
    decoding = decoder(on, prompt, drafter=drafter, depth=depth, verify=verify, chunk=8)
    assert run(decoding, 16, assert_like_fresh) == answer


HEAD_WAYS = ("chain", "adaptive", "rescue", "tree", "adaptive+rescue")


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
@pytest.mark.parametrize("way", HEAD_WAYS)
@pytest.mark.parametrize("verify", ["batch", pytest.param("step", marks=pytest.mark.full)])
@pytest.mark.parametrize("depth", [1, 3, *(pytest.param(d, marks=pytest.mark.full) for d in (2, 4, 5, 6))])
def test_every_way_with_the_head_changes_no_token_and_no_cache(family: str, way: str, verify: str, depth: int) -> None:
    """The head's own cache is aligned after every round, and its drafts change nothing."""
    on, prompt = target(family, head=True), prompt_of(9)
    decoding = decoder(on, prompt, speculation=way, depth=depth, verify=verify, chunk=4, tau=0.01)
    assert run(decoding, 14, assert_like_fresh) == reference(on, prompt, 14)
    assert decoding.stats()["drafted"] > 0


@pytest.mark.full
@pytest.mark.parametrize("seed", range(64))
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_64_prompts(seed: int, depth: int) -> None:
    """64 prompts, the right-k drafter changing with the prompt."""
    on, prompt = target("qwen3_next"), prompt_of(5 + seed, seed)
    answer = reference(on, prompt, 64)
    drafter = Scripted(answer, len(prompt), right_then_wrong(seed % (depth + 1)))
    assert run(decoder(on, prompt, drafter=drafter, depth=depth), 64) == answer


def test_a_drafter_that_always_proposes_the_end() -> None:
    """A drafted end-of-text token is no end of text."""
    on, prompt = target("qwen3_next"), prompt_of(7)

    class Ends:
        def draft(self, source: DraftSource, depth: int) -> Candidates:
            return scripted([256] * depth)

    assert run(decoder(on, prompt, drafter=Ends(), depth=3), 20) == reference(on, prompt, 20)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("way", ["chain", "rescue", "tree"])
def test_never_more_than_the_limit(tokens: int, depth: int, way: str) -> None:
    """A run that overran max_tokens would have more ids than were asked for."""
    on, prompt = target("qwen3_next"), prompt_of(6)
    answer = reference(on, prompt, 20)
    drafter = Scripted(answer, len(prompt), right_then_wrong(1), way)
    decoding = decoder(on, prompt, drafter=drafter, depth=depth)
    ids: list[int] = []
    while len(ids) < tokens:
        got = decoding.round(tokens - len(ids)).ids
        assert 1 <= len(got) <= tokens - len(ids)
        ids += got
    assert ids == answer[:tokens]
    assert decoding.round(0).ids == ()


def test_a_drafter_that_gives_more_than_it_was_asked_for() -> None:
    """The limit of a round is the drafter's contract; one that breaks it is a bug, told as one."""
    on, prompt = target("qwen3_next"), prompt_of(6)

    class Eager:
        def draft(self, source: DraftSource, depth: int) -> Candidates:
            return scripted([1] * (depth + 1))

    with pytest.raises(EngineBug, match="3 tokens were drafted where 2"):
        decoder(on, prompt, drafter=Eager(), depth=2).round(9)


def test_a_second_prompt_is_as_if_it_were_the_first() -> None:
    """Nothing of the first request is left, in tokens or in acceptance counts."""
    on, first, second = target("qwen3_next", head=True), prompt_of(9, 1), prompt_of(8, 2)

    def answer() -> tuple[list[int], dict]:
        decoding = decoder(on, second, speculation="rescue", depth=3)
        ids = run(decoding, 12)
        numbers = decoding.stats()
        del numbers["seconds"]
        return ids, numbers

    alone = answer()
    run(decoder(on, first, depth=3), 12)
    assert answer() == alone


def test_two_requests_in_turn() -> None:
    """Two requests interleaved on one target are each as alone."""
    on = target("qwen3_next")
    prompts = [prompt_of(9, 1), prompt_of(12, 2)]
    answers = [reference(on, p, 12) for p in prompts]
    both = [
        decoder(on, p, drafter=Scripted(a, len(p), right_then_wrong(1)), depth=2)
        for p, a in zip(prompts, answers, strict=True)
    ]
    got: list[list[int]] = [[], []]
    while min(map(len, got)) < 10:
        for ids, decoding in zip(got, both, strict=True):
            ids += decoding.round(3).ids
    assert [ids[:10] for ids in got] == [a[:10] for a in answers]


def test_depth_13_on_a_one_layer_head() -> None:
    """A chain longer than the head has layers."""
    on, prompt = target("qwen3_next", head=True), prompt_of(6)
    decoding = decoder(on, prompt, depth=13)
    assert run(decoding, 30) == reference(on, prompt, 30)
    assert decoding.stats()["drafted"] >= 13


def test_the_same_prompt_and_a_shared_prefix() -> None:
    """A second request over the same prefix, with another ending, equals a cold one (nothing is reused yet)."""
    on, prefix = target("qwen3_next"), prompt_of(20)
    for ending in ([], [3, 4], [5]):
        prompt = [*prefix, *ending]
        for _ in range(2):
            assert run(decoder(on, prompt, depth=0), 8) == reference(on, prompt, 8)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 63, 64, 65])
@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v3", "gpt_oss"])
def test_any_chunk_gives_the_same_state(family: str, chunk: int) -> None:
    """Also where a single token takes another path: no chunk is one token."""
    on, prompt = target(family, head=family == "qwen3_next"), prompt_of(67)
    decoding = decoder(on, prompt, depth=0, chunk=chunk)
    assert_like_fresh(decoding)


@pytest.mark.parametrize("family", ["qwen3_next", "gpt_oss", "deepseek_v3"])
def test_delivered_tokens_lead_to_the_same_state_and_the_same_rest(family: str) -> None:
    """A restart feeds what was delivered as it was fed, one at a time: in a batch some models give other bits."""
    on, prompt = target(family, head=family == "qwen3_next"), prompt_of(9)
    answer = reference(on, prompt, 20)
    first = decoder(on, prompt, depth=0, chunk=4)
    assert run(first, 7) == answer[:7]
    again = decoder(on, prompt, delivered=answer[:7], depth=2, chunk=4)
    assert_same_caches(again._state.caches, first._state.caches)
    assert run(again, 13) == answer[7:]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_prompts(length: int) -> None:
    """A prompt of one token has no pair for the head yet: the first round is plain."""
    on, prompt = target("qwen3_next", head=True), prompt_of(length)
    decoding = decoder(on, prompt, depth=2)
    assert run(decoding, 6, assert_like_fresh) == reference(on, prompt, 6)


def test_plain_greedy_runs_one_forward_ahead_and_comes_back() -> None:
    """The pipeline's tokens are the rounds' tokens; drafting can begin in the middle of it."""
    on, prompt = target("qwen3_next", head=True), prompt_of(9)
    answer = reference(on, prompt, 24)
    decoding = decoder(on, prompt, depth=2)
    decoding._rounds._controller = Steps([0] * 6 + [2] * 2 + [0] * 3)
    assert run(decoding, 24) == answer
    assert decoding.stats()["pipelined"] >= 8
    assert not decoding._pipeline.in_flight, "the last token was asked for: nothing may run ahead of it"
    assert_like_fresh(decoding)


def test_a_long_pipeline_lets_go_of_finished_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What streams keep of a forward until `settle` must not grow with the answer: the pipeline drains now and then."""
    on, prompt = target("qwen3_moe"), prompt_of(3)
    settled: list[int] = []
    decoding = decoder(on, prompt, depth=0)
    monkeypatch.setattr(type(on.stream), "settle", lambda self: settled.append(len(decoding.history)))
    monkeypatch.setattr("mtp_daemon.engine.decode.pipeline.DRAIN_EVERY", 16)
    assert run(decoding, 40) == reference(on, prompt, 40)
    assert [length - len(prompt) for length in settled] == [0, 16, 32, 39]
    assert decoding.stats()["pipelined"] == 40


def test_the_first_token_waits_for_no_second_forward() -> None:
    """A launch may return only when most of its forward is computed: a client would see its first token that late."""
    on, prompt = target("qwen3_moe"), prompt_of(3)
    decoding = decoder(on, prompt, depth=0)
    flying: list[bool] = []
    run(decoding, 4, lambda after: flying.append(after._pipeline.in_flight))
    assert flying == [False, True, True, False]


def test_every_choice_of_the_controller_is_carried_out_and_heard_of() -> None:
    """A depth chosen while a plain forward is in flight is drafted after it: a probe that were swallowed by the
    pipeline would never re-arm drafting.
    """
    on, prompt = target("qwen3_next", head=True), prompt_of(9)
    decoding = decoder(on, prompt, depth=3)
    chosen: list[int] = []
    heard: list[int] = []

    class Probing(Steps):
        def choose(self, limit: int) -> int:
            chosen.append(super().choose(limit))
            return chosen[-1]

        def observe(self, round_: RoundTimes) -> None:  # type: ignore[override]
            heard.append(round_.drafted)

    decoding._rounds._controller = Probing([0, 0, 2, 0, 1, 3, 0, 0, 2, 2, 0])
    assert run(decoding, 30) == reference(on, prompt, 30)
    assert heard[: len(chosen)] == chosen and chosen.count(2) == 3 and 3 in chosen
    assert heard[len(chosen) :] in ([], [0]), "only the answer's last token is plain without being asked for"


class Steps:
    """A controller that follows a list, then stays at its last entry."""

    def __init__(self, depths: list[int]) -> None:
        self._depths = depths

    def choose(self, limit: int) -> int:
        depth = self._depths.pop(0) if len(self._depths) > 1 else self._depths[0]
        return min(depth, limit)

    def observe(self, round_: object) -> None:
        pass

    def successor(self) -> "Steps":
        return self


def test_the_last_positions_logits_only() -> None:
    """Prefill computes no logits; each round those of its own rows."""
    on, prompt = target("qwen3_next"), prompt_of(40)
    asked: list[int] = []
    plain = on.trunk.logits

    def logits(post: mx.array) -> mx.array:
        asked.append(post.shape[1])
        return plain(post)

    on.trunk.logits = logits  # type: ignore[method-assign]
    try:
        run(decoder(on, prompt, depth=0, chunk=16), 3)
    finally:
        del on.trunk.logits
    assert asked == [1, 1, 1]


def test_a_longer_prompt_costs_its_caches_only() -> None:
    """With chunks of 64, a prompt twice as long peaks higher by its keys and values, not by its activations."""
    on = target("qwen3_moe")
    peaks = []
    for length in (513, 1025):
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        decoding = decoder(on, prompt_of(length), depth=0, chunk=64)
        peaks.append(mx.get_peak_memory() - before)
        held = sum(c.nbytes for c in decoding._state.caches)
        decoding.close()
    logits_of_all = 1025 * 512 * 4
    assert peaks[1] - peaks[0] < 2 * held, peaks
    assert peaks[1] < 3 * held + logits_of_all, peaks
