"""Many clients at once: arrivals, times, fairness and the front's cost, counted by hand."""

from itertools import pairwise
from pathlib import Path

import pytest

from mtp_daemon.bench.cli import main
from mtp_daemon.bench.load_client import Asked
from mtp_daemon.bench.load_plan import poisson
from mtp_daemon.bench.load_summary import FrontCost, fairness, front_delay, summary, token_times, ttft

COST = FrontCost(cpu_s=0.5, wall_s=10.0, idle_share=0.01)


def _asked(client: int = 0, due_s: float = 100.0, outcome: str = "length", sent_s: float | None = 100.9) -> Asked:
    """First token a second after it was due, three tokens 0.6 s later."""
    stats = {"queued_s": 0.25, **({} if sent_s is None else {"first_at_s": sent_s})}
    return Asked(client, due_s, 16, [(due_s + 1.0, 1), (due_s + 1.6, 3)], outcome, stats)


def test_the_same_seed_gives_the_same_arrivals_at_the_rate_asked_for() -> None:
    arrivals = poisson(rate=5.0, requests=4000, clients=3, prompt_tokens=[8, 16], seed=1)
    assert arrivals == poisson(5.0, 4000, 3, [8, 16], 1) != poisson(5.0, 4000, 3, [8, 16], 2)
    gaps = [b.at_s - a.at_s for a, b in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.1)
    spread = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1), "of exponential gaps the deviation is the mean"
    assert {a.client for a in arrivals} == {0, 1, 2} and {a.prompt_tokens for a in arrivals} == {8, 16}


def test_times_are_from_when_a_request_was_due_and_shared_by_the_tokens_of_a_run() -> None:
    asked = _asked()
    assert ttft(asked) == 1.0
    assert token_times(asked) == pytest.approx([0.2, 0.2, 0.2])
    assert front_delay(asked) == pytest.approx(0.1)
    assert front_delay(_asked(sent_s=None)) is None


def test_what_did_not_end_whole_is_counted_and_not_averaged() -> None:
    cut = _asked(due_s=102.0, outcome="cut")
    result = summary([_asked(), cut, Asked(1, 103.0, 16, outcome="busy")], COST)
    assert result["outcomes"] == {"length": 1, "cut": 1, "busy": 1}
    assert result["tokens"] == 8, "tokens that came count, whatever became of their answer"
    assert result["tok_per_s"] == pytest.approx(8 / 3.6), "from the first due to the last arrival"
    assert result["ttft_s"] == {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    assert result["queued_s"]["p50"] == 0.25


def test_a_load_of_which_nothing_ended_has_no_times() -> None:
    result = summary([Asked(0, 100.0, 16)], COST)
    assert (result["ttft_s"], result["tok_per_s"], result["tokens"]) == (None, 0.0, 0)


def test_a_client_that_waits_longer_is_seen() -> None:
    quick = [_asked(client=c) for c in range(3)]
    assert fairness(quick) == pytest.approx({"clients": 3, "waiting": 1.0, "service": 1.0})
    slow = Asked(3, 100.0, 16, [(103.0, 1), (103.6, 3)], "length", {"queued_s": 2.0})
    found = fairness([*quick, slow])
    assert found["waiting"] == pytest.approx((1 + 1 + 1 + 3) ** 2 / (4 * (1 + 1 + 1 + 9)))
    assert found["service"] < 1


def test_the_front_s_cost_a_token_leaves_its_idling_out() -> None:
    assert COST.per_token(100) == pytest.approx((0.5 - 0.1) / 100)
    assert COST.share_at(50.0, 100) == pytest.approx(0.01 + 50 * 0.004)
    assert COST.per_token(0) == 0


def test_where_nobody_serves_says_how_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--run-dir", str(tmp_path / "nobody")]) == 2
    assert "mtpd serve MODEL" in capsys.readouterr().err
