"""A long recording is replayed in several processes: the same rows, in the same order."""

import pytest

from mtp_loader.replay import table
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.trace import DECODE, Forward, LayerFacts, Trace
from support.traces import made_up_events


def test_rows_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are spawned, get the recording once and may end in any order."""
    events = made_up_events(30, 3, 12, 2, seed=4)
    facts = {y: LayerFacts(y, 0, 12, 2, 10) for y in range(3)}
    trace = Trace("t", "", facts, [Forward(i, DECODE, (), tuple(events[i * 3 : i * 3 + 3])) for i in range(30)])
    plan = table.Plan(("lru", "forecast", "belady"), (0.3, 0.5), ("none", "blend"), Machine(1e4, 0.001), 1)
    alone = table.rows(trace, plan)
    assert [(r.share, r.policy, r.predictor) for r in alone[:3]] == [
        (0.3, "lru", "none"), (0.3, "lru", "blend"), (0.3, "forecast", "none"),
    ]  # fmt: skip
    monkeypatch.setattr(table, "_EVENTS_WORTH_A_PROCESS", 1)
    assert table.rows(trace, plan, jobs=2) == alone
