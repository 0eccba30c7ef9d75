"""The numbers of an answer: against hand counts, and adding up in every case; and how often the host reads."""

from typing import Any

import mlx.core as mx
import pytest

from mtp_daemon.engine.decode.stats import RoundStats
from mtp_daemon.engine.depth import RoundTimes
from mtp_daemon.engine.draft.interface import Candidates, DraftSource
from support.decoding import (
    Scripted,
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


def test_a_scripted_pattern_counted_by_hand() -> None:
    """Depth 3; right drafts a round 3, 0, 1, 2, then the end: drafted, accepted and emitted as counted by hand."""
    on, prompt = target("qwen3_next"), prompt_of(7)
    answer = reference(on, prompt, 10)
    pattern = iter([3, 0, 1, 2])

    class Pattern:
        def draft(self, source: DraftSource, depth: int) -> Candidates | None:
            right = right_then_wrong(next(pattern))
            at = len(source.history) - len(prompt)
            return scripted([right(i, token) for i, token in enumerate(answer[at : at + depth])])

    decoding = decoder(on, prompt, drafter=Pattern(), depth=3, verify="batch")
    # Ten tokens: 4, 1, 2, and three left, which leaves room for two drafts, both right.
    assert run(decoding, 10) == answer
    numbers = decoding.stats()
    assert numbers["rounds"] == numbers["verifies"] == 4
    assert numbers["drafted"] == 3 + 3 + 3 + 2
    assert numbers["accepted"] == 3 + 0 + 1 + 2
    assert numbers["committed"] == 10
    assert numbers["offered_by_position"] == [4, 3, 1]
    assert numbers["accepted_by_position"] == [3, 2, 1]
    assert numbers["accepted_lengths"] == {"1": 1, "2": 1, "3": 1, "4": 1}
    assert numbers["depth_over_time"] == [[3, 3], [2, 1]]
    assert numbers["tokens_per_round"] == 2.5
    assert numbers["rescues"] == 0


@pytest.mark.parametrize("way", ["chain", "rescue", "tree"])
@pytest.mark.parametrize("script", [oracle, wrong, right_then_wrong(1)])
def test_the_numbers_add_up(way: str, script: Any) -> None:
    """0 <= accepted <= drafted, and every sum that the docstring of `as_dict` promises."""
    on, prompt = target("qwen3_next"), prompt_of(7)
    answer = reference(on, prompt, 21)
    decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), script, way), depth=4)
    assert decoding.stats()["committed"] == 0
    run(decoding, 21)
    numbers = decoding.stats()
    assert 0 <= numbers["accepted"] <= numbers["drafted"]
    assert numbers["committed"] == 21 == numbers["accepted"] + numbers["verifies"]
    assert numbers["committed"] == sum(int(k) * v for k, v in numbers["accepted_lengths"].items())
    assert (
        numbers["rounds"] == sum(numbers["accepted_lengths"].values()) == sum(n for _, n in numbers["depth_over_time"])
    )
    assert numbers["accepted"] == sum(numbers["accepted_by_position"])
    assert numbers["verifies"] == numbers["rounds"] + numbers["rescues"]
    assert (numbers["rescues"] > 0) == (way == "rescue" and script is not oracle)
    seconds = numbers["seconds"]
    parts = sum(seconds[p] for p in ("draft", "verify", "sync", "commit"))
    assert seconds["total"] == pytest.approx(parts) and all(v >= 0 for v in seconds.values())


def test_a_rescue_commits_more_than_a_token() -> None:
    """The reject's true token began a branch: its rest is verified in the same round, not drafted anew."""
    on, prompt = target("qwen3_next"), prompt_of(7)
    answer = reference(on, prompt, 20)
    for script in (wrong, right_then_wrong(1)):
        decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), script, "rescue"), depth=4)
        ids = decoding.round(20).ids
        assert list(ids) == answer[:5], "main path rejected at the branch, its rest accepted, and one token more"
        assert decoding.stats()["rescues"] == 1


def test_a_request_of_no_tokens_has_finite_numbers() -> None:
    """Nothing decoded: every number is there, finite and 0."""
    numbers = decoder(target("qwen3_next"), prompt_of(3)).stats()
    assert numbers["tokens_per_round"] == numbers["misses_per_token"] == numbers["seconds"]["total"] == 0


def test_the_probe_counts_the_true_token_in_the_heads_best() -> None:
    """Off by default; on, top 1 is what chain's first position accepted, and the shares grow from 1 to 3."""
    on, prompt = target("qwen3_next", head=True), prompt_of(7)
    assert "true_token_in_head_top_1_2_3" not in decoder(on, prompt, depth=2).stats()
    decoding = decoder(on, prompt, depth=2, probe=True)
    assert run(decoding, 9) == reference(on, prompt, 9)
    numbers = decoding.stats()
    one, two, three = numbers["true_token_in_head_top_1_2_3"]
    assert one <= two <= three
    assert one == numbers["acceptance_by_position"][0]
    stats = RoundStats()
    stats.probe([5, 7, 9], 7)
    stats.probe([5, 7, 9], 1)
    assert stats.as_dict(0)["true_token_in_head_top_1_2_3"] == [0.0, 0.5, 0.5]


def test_the_controller_hears_of_every_round() -> None:
    """What the depth controller learns from is what happened: drafts and how many were right."""
    on, prompt = target("qwen3_next"), prompt_of(7)
    answer = reference(on, prompt, 9)
    heard: list[RoundTimes] = []

    class Listening:
        def choose(self, limit: int) -> int:
            return min(2, limit)

        def observe(self, round_: RoundTimes) -> None:
            heard.append(round_)

        def successor(self) -> "Listening":
            return self

    decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), right_then_wrong(1)), depth=2)
    decoding._rounds._controller = Listening()
    run(decoding, 9)
    assert [(r.drafted, r.accepted) for r in heard] == [(2, 1)] * 4 + [(0, 0)]
    assert all(r.draft_s >= 0 and r.verify_s > 0 and r.stall_s == 0 for r in heard)


def test_the_controller_hears_of_a_rescue_as_of_the_path_that_was_taken() -> None:
    """A rescue's tokens count: its round committed accepted + 1 of them, on the branch."""
    on, prompt = target("qwen3_next"), prompt_of(7)
    answer = reference(on, prompt, 9)
    decoding = decoder(on, prompt, drafter=Scripted(answer, len(prompt), wrong, "rescue"), depth=3)
    heard: list[RoundTimes] = []
    decoding._rounds._controller.observe = heard.append  # type: ignore[method-assign]
    assert len(decoding.round(9).ids) == 4
    assert [(r.drafted, r.accepted) for r in heard] == [(3, 3)]


class Reads:
    """Counts waits for the device: `mx.eval` and what is read of an array that was not computed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        plain = mx.eval

        def counted(*arrays: Any) -> None:
            self.count += 1
            plain(*arrays)

        patch.setattr(mx, "eval", counted)


@pytest.mark.parametrize("way", ["chain", "adaptive", "rescue", "tree"])
def test_one_host_read_a_draft_step_and_one_a_verify(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step j's read brings step j - 1's tokens: depth d reads d times in all with the verify's one, `adaptive` once
    more, for the last token it drafted must be known to be wanted.
    """
    on, prompt = target("qwen3_next", head=True), prompt_of(7)
    decoding = decoder(on, prompt, speculation=way, depth=4, tau=1e-9)
    reads = Reads(monkeypatch)
    run_ids = decoding.round(20).ids
    steps_read, last_read, verdict = 3, 1 if way == "adaptive" else 0, 1
    rescued = decoding.stats()["rescues"]
    assert reads.count == steps_read + last_read + verdict + rescued, run_ids
