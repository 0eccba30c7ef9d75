"""What `mtp-bench spec` makes of answers and counters, on cases that can be counted by hand."""

from typing import Any

import pytest

from mtp_daemon.bench.serving import Served
from mtp_daemon.bench.spec_summary import Run, activations, commits, counted, margins, mismatches, summary
from mtp_protocol.client_messages import TokenLogprobs

JUDGE = [5, 6, 7, 8]


def _stats(**changed: Any) -> dict[str, Any]:
    """Four tokens in two rounds of two, in two seconds."""
    return {
        "tok_per_s": 2.0, "committed": 4, "decode_s": 2.0, "tokens_per_round": 2.0, "acceptance_by_position": [1.0],
        "drafted_by_position": [2], "accepted_lengths": {"2": 2}, "verify": "batch", "hits": 30, "misses": 10,
        "misses_per_token": 2.5, "draft_s": 0.2, "verify_s": 1.0, "sync_s": 0.4, "commit_s": 0.1, "decode_stall_s": 0.5,
        "unions": {"1": {"4": 3}, "2": {"6": 1, "8": 3}}, "cache_bytes": 100, "memory_start_bytes": 1000,
        "memory_peak_bytes": 1500, **changed,
    }  # fmt: skip


def _run(ids: list[int] = JUDGE, loads: int = 12, **changed: Any) -> Run:
    loader = {"experts_read": loads, "bytes_read": 1000 * loads, "prefetches": 5, "prefetched_in_time": 2}
    return Run(Served(list(ids), _stats(**changed)), loader)


PLAIN = _run(tok_per_s=1.0, loads=8)


def test_a_token_that_differs_is_counted_and_one_that_is_missing_as_well() -> None:
    assert mismatches([1, 2, 3], [1, 2, 3]) == 0
    assert mismatches([1, 9, 3], [1, 2, 3]) == 1
    assert mismatches([1, 2], [1, 2, 3, 4]) == mismatches([1, 2, 3, 4], [1, 2]) == 2
    found = summary(1, [_run(), _run([5, 0, 7])], [PLAIN, PLAIN], JUDGE)
    assert (found["exact_match"], found["mismatches"], found["compared"]) == (False, 2, 8)
    assert summary(1, [_run()], [PLAIN], JUDGE)["exact_match"]


def test_speed_up_is_paired_with_the_plain_run_of_the_same_round() -> None:
    slow_then_fast = [_run(tok_per_s=2.0), _run(tok_per_s=8.0)]
    plain = [_run(tok_per_s=1.0), _run(tok_per_s=4.0)]
    found = summary(1, slow_then_fast, plain, JUDGE)["speed_up"]
    assert (found.median, found.low, found.high) == (2, 2, 2)


def test_loads_and_bytes_of_both_paths_are_the_loader_s() -> None:
    found = summary(1, [_run()], [PLAIN], JUDGE)
    assert (found["loads"], found["bytes_read"], found["prefetches"], found["prefetched_in_time"]) == (12, 12000, 5, 2)
    assert (found["loads_of_plain"], found["bytes_of_plain"]) == (1.5, 1.5)
    assert found["hit_rate"] == 0.75
    nothing_read = summary(1, [_run()], [_run(loads=0)], JUDGE)
    assert nothing_read["loads_of_plain"] is None


def test_counters_are_differences_and_what_is_not_counted_is_nothing() -> None:
    before = {"experts_read": 3, "bytes_read": 30}
    after = {"experts_read": 5, "bytes_read": 50, "prefetches": 4}
    assert counted(before, after) == {"experts_read": 2, "bytes_read": 20, "prefetches": 4, "prefetched_in_time": 0}


def test_time_by_part_adds_up_and_each_part_s_absence_is_said() -> None:
    found = summary(1, [_run()], [PLAIN], JUDGE)
    seconds = found["seconds"]
    assert seconds["finish"] == pytest.approx(2.0 - (0.2 + 1.0 + 0.4 + 0.1))
    assert sum(t for part, t in seconds.items() if part != "stall") == pytest.approx(found["decode_s"])
    assert found["tok_per_s_without"]["verify"] == pytest.approx(4 / 1.0)
    assert found["tok_per_s_without"]["stall"] == pytest.approx(4 / 1.5)


def test_unions_of_all_runs_are_taken_together() -> None:
    unions = summary(1, [_run(), _run()], [PLAIN, PLAIN], JUDGE)["unions"]
    assert unions["1"] == {"mean": 4.0, "p50": 4, "p99": 4, "largest": 4}
    assert unions["2"] == {"mean": 7.5, "p50": 8, "p99": 8, "largest": 8}


def test_a_verify_is_direct_in_one_forward_and_a_fallback_position_by_position() -> None:
    assert commits(_stats()) == {"direct_commits": 2, "fallbacks": 0, "fallback_why": None}
    stepped = commits(_stats(verify="step: RotatingKVCache cannot go back"))
    assert (stepped["direct_commits"], stepped["fallbacks"]) == (0, 2)
    assert "RotatingKVCache" in stepped["fallback_why"]
    assert commits(_stats(drafted_by_position=[]))["direct_commits"] == 0, "plain decoding verifies no draft"


def test_activations_are_the_peak_beyond_what_was_held_and_what_stays() -> None:
    assert activations(_stats()) == 400
    assert activations(_stats(memory_peak_bytes=1050)) == 0


def test_a_margin_is_the_gap_between_the_best_two() -> None:
    told = [TokenLogprobs(5, -0.1, ((5, -0.1), (9, -2.1))), TokenLogprobs(6, -0.7, ((6, -0.7), (2, -0.7)))]
    assert margins(told) == pytest.approx([2.0, 0.0])
