"""A short soak in every run of the tests, and proof that a soak would see what it looks for."""

import random
from pathlib import Path

import pytest

from mtp_protocol.client_messages import Finished, Tokens, Usage
from support.checkpoints import Head, make_checkpoint
from support.soak.asker import Heard, Wish
from support.soak.pauses import Pauses
from support.soak.picture import draw
from support.soak.questions import Question, Right
from support.soak.run import Plan, soak
from support.soak.samples import Process, Samples, growth, unsteady
from support.soak.schedule import Schedule
from support.soak.service import Wrong

RIGHT = Right((5, 6, 7, 8), "five six seven eight")


def test_two_minutes_of_soak_find_nothing(tmp_path: Path) -> None:
    """Kills, stops, sizes, clients that leave, all at once: every token right, no leak. The machine may be busy."""
    model = make_checkpoint(tmp_path / "tiny", "qwen3_next", head=Head(place="shard"))
    out = tmp_path / "out"
    plan = Plan(
        model, 2.0, 4, out, clients=2, pool_share=0.5, kill_s=4.0, act_s=4.0, silent_s=8.0, sample_s=1.0,
        questions=4, pauses_count=False,
    )  # fmt: skip
    report = soak(plan, print)
    assert report.fault is None
    assert report.checks >= 3 and report.tokens > 0
    assert sum(report.answers.values()) >= 5
    assert report.kills >= 15
    assert (out / "soak.svg").read_text().startswith("<svg") and (out / "soak.json").stat().st_size > 1000


def test_a_wrong_token_is_seen() -> None:
    """A soak that could not fail would prove nothing: one wrong id, one gap, one repeat, one missing token."""
    wish = Wish("greedy", Question((1, 2), RIGHT, RIGHT), None, None, 4, 0)
    for seq, ids in ((2, (9,)), (3, (8,)), (1, (6,))):
        heard = Heard(wish)
        heard.tokens(Tokens(b"r", 0, (5, 6), "five six"))
        with pytest.raises(Wrong):
            heard.tokens(Tokens(b"r", seq, ids, "?"))
    short = Finished(b"r", "length", Usage(2, 2), {})
    with pytest.raises(Wrong):
        heard.finished(short)


def grown(per_second: float, noise: int) -> Process:
    times = [float(t) for t in range(0, 1200, 5)]
    rss = [int(100e6 + per_second * t + noise * ((i * 7919) % 13 - 6)) for i, t in enumerate(times)]
    return Process("engine", 1, times, rss)


@pytest.mark.parametrize(("per_second", "leaks"), [(0.0, False), (500.0, False), (10_000.0, True)])
def test_a_leak_is_seen_and_noise_is_none(per_second: float, leaks: bool) -> None:
    """12 MB in twenty minutes is a leak; 0.6 MB may be a table's rows; an allocator's noise is neither."""
    found = growth(grown(per_second, 100_000), 300.0)
    assert found is not None and found.leaks == leaks
    assert found.per_hour == pytest.approx(3600 * per_second, abs=3 * found.error_per_hour + 1)


def test_descriptors_that_only_rise_are_seen() -> None:
    """One descriptor a request, or a thread a restart, is a leak however small."""
    steady = Process("front", 1, idle=[(t, 20 + t % 2, 3) for t in range(10)])
    rising = Process("front", 1, idle=[(t, 20 + t, 3) for t in range(10)])
    threads = Process("loader", 1, idle=[(t, 20, 3 + t // 3) for t in range(10)])
    assert unsteady(steady) is None
    assert "descriptors" in (unsteady(rising) or "")
    assert "threads" in (unsteady(threads) or "")


def test_a_pause_begins_with_the_last_trouble() -> None:
    """A kill each five seconds would else add up to a pause of nobody's; a hang without a kill is one in full."""
    pauses = Pauses()
    pauses.asked(100.0)
    pauses.token(101.0)
    pauses.disturbed(107.0)
    pauses.disturbed(114.0)
    assert pauses.waited_s(118.0) == 17.0
    pauses.token(119.0)
    assert (pauses.longest_s, pauses.too_long) == (7.0, [])
    pauses.token(131.0)
    assert (pauses.longest_s, pauses.too_long) == (12.0, [(131.0, 12.0)])


def test_delays_do_not_lower_the_rate_of_kills() -> None:
    """A soak of so many minutes must have its kills, though each takes a while and checks come in between."""
    schedule, now, kills = Schedule(random.Random(7), 5.0), 0.0, 0
    while now < 1200.0:
        now += 0.1
        if schedule.due(now):
            schedule.done(now)
            now += 2.0
            kills += 1
    assert 200 <= kills <= 280


def test_a_picture_of_nothing_is_a_picture(tmp_path: Path) -> None:
    """A soak that ends with a fault at once still leaves its figures."""
    draw(tmp_path / "soak.svg", "nothing <yet>", Samples())
    assert "nothing &lt;yet&gt;" in (tmp_path / "soak.svg").read_text()
