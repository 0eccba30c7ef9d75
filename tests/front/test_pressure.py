"""Memory pressure: when the pool gives way, how far, and when it comes back. Pure, and the files it is read from."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_daemon.front.pressure import Level, PressurePolicy, limits
from mtp_daemon.front.pressure_source import _group_level, pressure_source, psi_level


def run(policy: PressurePolicy, level: Level, begin: float, seconds: int) -> list[float]:
    """The share after each second."""
    return [policy.look(level, begin + s) for s in range(seconds)]


def test_shrinks_in_steps() -> None:
    """At once, then a step in ten seconds: PSI's average needs as long to show what a step did."""
    shares = run(PressurePolicy(), Level.SOME, 0.0, 25)
    assert shares[0] == 0.9 and shares[9] == 0.9 and shares[10] == 0.8 and shares[24] == 0.7
    assert run(PressurePolicy(), Level.CRITICAL, 0.0, 100)[-1] == 0.0


def test_never_below_the_minimum() -> None:
    """However long it lasts, a model keeps what one token's experts need; it is what share 0 means."""
    policy = PressurePolicy()
    share = run(policy, Level.CRITICAL, 0.0, 1000)[-1]
    assert limits(share, (100, 40), (8, 4)) == (8, 4)
    assert limits(1.0, (100, 40), (8, 4)) == (100, 40)
    assert limits(0.5, (8, 4), (8, 4)) == (8, 4)


def test_grows_back_slowly() -> None:
    """Nothing for a minute, then a little each minute, up to all of it and no further."""
    policy = PressurePolicy()
    assert run(policy, Level.SOME, 0.0, 1) == [0.9]
    shares = run(policy, Level.NONE, 1.0, 200)
    assert shares[:58] == [0.9] * 58 and shares[60] == 0.95 and shares[-1] == 1.0
    assert max(shares) == 1.0


def test_does_not_swing() -> None:
    """Growth that brought the pressure back waits twice as long the next time."""
    policy, now, waits = PressurePolicy(), 0.0, []
    policy.look(Level.SOME, now)
    for _ in range(4):
        began, before = now, policy.share
        while policy.share <= before:
            now += 1.0
            policy.look(Level.NONE, now)
        waits.append(now - began)
        now += 11.0
        assert policy.look(Level.SOME, now) < before + 0.05
    assert [round(b / a) for a, b in pairwise(waits)] == [2, 2, 2]


@given(st.lists(st.tuples(st.sampled_from(Level), st.floats(0.1, 500)), max_size=200))
def test_share_stays_a_share(events: list[tuple[Level, float]]) -> None:
    """Whatever comes, in whatever order: 0..1, never up under pressure, never down without, ten seconds a step."""
    policy, now, share, stepped = PressurePolicy(), 0.0, 1.0, -100.0
    for level, after in events:
        now += after
        new = policy.look(level, now)
        assert 0.0 <= new <= 1.0
        assert new <= share if level else new >= share
        if new != share:
            assert now - stepped >= 10.0
            stepped = now
        share = new


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("some avg10=0.00 avg60=9.00 avg300=9.00 total=5\nfull avg10=0.00 avg60=9 avg300=9 total=5\n", Level.NONE),
        ("some avg10=12.50 avg60=0.00 avg300=0.00 total=5\nfull avg10=1.00 avg60=0 avg300=0 total=5\n", Level.SOME),
        ("some avg10=80.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=5.10 avg60=0 avg300=0 total=5\n", Level.CRITICAL),
        ("nonsense", Level.NONE),
    ],
)  # fmt: skip
def test_psi(tmp_path: Path, text: str, level: Level) -> None:
    (tmp_path / "memory").write_text(text)
    assert psi_level(tmp_path / "memory") is level


def test_sources(tmp_path: Path) -> None:
    """Off looks at nothing; a file that is not there, and a kernel that tells nothing, mean no pressure."""
    assert pressure_source("off") is None
    missing = pressure_source(str(tmp_path / "none"))
    assert missing is not None and missing() is Level.NONE
    machine = pressure_source("auto")
    assert machine is not None and machine() in Level


@pytest.mark.parametrize(
    ("current", "high", "file", "level"),
    [
        (950, "1000", 0, Level.SOME),
        (990, "1000", 0, Level.CRITICAL),
        (990, "1000", 500, Level.NONE),
        (990, "max", 0, Level.NONE),
    ],
)
def test_control_group(tmp_path: Path, current: int, high: str, file: int, level: Level) -> None:
    """Near a group's limit, but for pages of files, which it gives up by itself."""
    for name, text in (("memory.high", high), ("memory.max", "max"), ("memory.current", str(current))):
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {file}\n")
    assert _group_level(tmp_path) is level
