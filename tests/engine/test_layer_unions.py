"""Unions by layer in an answer's numbers, counted by hand."""

from types import SimpleNamespace
from typing import Any, cast

from mtp_daemon.engine.process.answer_stats import Clock
from mtp_daemon.engine.routing import DECODE, PROMPT, Forward
from mtp_daemon.engine.stream_stats import COUNTED_BY_LAYER, StreamStats


def test_an_answer_s_unions_are_its_own_layer_by_layer() -> None:
    """What ran before it is not in it; a prompt's chunk is counted over all layers only, or weeks would fill memory."""
    stats = StreamStats()
    before = Forward(1, DECODE, [7])
    before.count(stats, 0, 4, 1)
    clock = Clock(cast(Any, SimpleNamespace(stats=stats)))
    chunk = Forward(2, PROMPT, list(range(COUNTED_BY_LAYER + 1)))
    chunk.count(stats, 0, 20, 0)
    for distinct in (6, 8, 8):
        Forward(3, DECODE, [1, 2]).count(stats, 3, distinct, 0)
    Forward(4, DECODE, [1]).count(stats, 0, 4, 0)
    numbers = clock.numbers({}, 1, 0)
    assert numbers["unions_by_layer"] == {
        "0": {"1": {"mean": 4.0, "p50": 4, "p99": 4, "largest": 4}},
        "3": {"2": {"mean": 22 / 3, "p50": 8, "p99": 8, "largest": 8}},
    }
    assert numbers["unions"] == {"1": {"4": 1}, "2": {"6": 1, "8": 2}, "17": {"20": 1}}
