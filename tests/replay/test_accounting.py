"""The replay's books, counted by hand and held together by properties."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_loader.policy.interface import Event, key_of
from mtp_loader.policy.registry import CLAIRVOYANT, NAMES
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.run import make_banks, replay
from mtp_loader.replay.table import Plan, maker, rows
from mtp_loader.replay.timeline import Timeline, make_predictor
from mtp_loader.replay.trace import DECODE, Forward, LayerFacts, Trace
from support.traces import made_up_events


def trace_of(events: list[Event], layers: int, experts: int, nbytes: int = 10, top_k: int = 2) -> Trace:
    """Events as one-token forwards; every layer in bank 0."""
    facts = {y: LayerFacts(y, 0, experts, top_k, nbytes * (y + 1)) for y in range(layers)}
    forwards: list[list[Event]] = []
    current: list[Event] = []
    for event in events:
        if current and event.layer <= current[-1].layer:
            forwards.append(current)
            current = []
        current.append(event)
    forwards.append(current)
    rows = [tuple((e.layer, (tuple(k & 0xFFFF for k in e.keys),)) for e in f) for f in forwards]
    made = [Forward(i, DECODE, (i % 7,), tuple(f), r) for i, (f, r) in enumerate(zip(forwards, rows, strict=True))]
    return Trace("made up", "", facts, made)


def visit(layer: int, *experts: int) -> Event:
    return Event(layer, tuple(key_of(layer, e) for e in experts))


def test_a_hand_counted_trace() -> None:
    """Three slots, LRU, layers of 10 and 20 bytes an expert, by hand:

    (0: 1 2) two misses; (1: 1) one, full; (0: 1 3) hit 1, miss 3, out goes 2; (1: 1) hit; (0: 2 3) hit 3, miss 2, out
    goes 1 of layer 0; (1: 1) hit.
    """
    events = [visit(0, 1, 2), visit(1, 1), visit(0, 1, 3), visit(1, 1), visit(0, 2, 3), visit(1, 1)]
    tally = replay(trace_of(events, 2, 8), maker("lru"), {0: 3})[DECODE]
    assert (tally.requests, tally.hits, tally.misses) == (9, 4, 5)
    assert tally.read_bytes == 4 * 10 + 1 * 20
    assert (tally.forwards, tally.tokens) == (3, 3)


def test_an_events_own_experts_are_never_its_victims() -> None:
    """Belady knows that 1 and 2 are never needed after this event, and would give up 1, which the event needs."""
    trace = trace_of([visit(0, 1, 2), visit(0, 1, 3)], 1, 4)
    bank = make_banks(trace, maker("belady"), {0: 2}, 0, ())[0]
    for event in trace.events:
        bank.request(event)
        assert set(event.keys) <= bank.resident


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([*NAMES, CLAIRVOYANT]),
    slots=st.integers(1, 40),
    reserve=st.integers(0, 6),
    seed=st.integers(0, 1000),
    pins=st.sets(st.integers(0, 11), max_size=3),
)
def test_the_books_balance(name: str, slots: int, reserve: int, seed: int, pins: set[int]) -> None:
    """Hits + misses == requests, bytes == misses times size, residents within the slots, pins always there."""
    trace = trace_of(made_up_events(8, 3, 12, 2, seed), 3, 12)
    pinned = {key_of(0, e) for e in pins} if slots > len(pins) + 2 else set()
    bank = make_banks(trace, maker(name), {0: slots}, reserve, pinned)[0]
    missed: list[int] = []
    for event in trace.events:
        missing = bank.request(event)
        missed += missing
        assert len(bank.resident) <= slots
        assert pinned <= bank.resident
        assert not pinned & set(missing)
    tally = replay(trace, maker(name), {0: slots}, reserve, pinned)[DECODE]
    assert tally.misses == len(missed)
    assert tally.hits + tally.misses == tally.requests == sum(len(e.keys) for e in trace.events)
    assert tally.read_bytes == sum(10 * ((key >> 16) + 1) for key in missed)


@settings(max_examples=20, deadline=None)
@given(slots=st.integers(4, 30), reserve=st.integers(0, 6), seed=st.integers(0, 1000), fast=st.booleans())
def test_the_books_balance_with_prefetching(slots: int, reserve: int, seed: int, fast: bool) -> None:
    """The timeline's: bytes are misses and prefetches, the attribution makes up the requests, time is never lost."""
    trace = trace_of(made_up_events(12, 3, 12, 2, seed), 3, 12)
    machine = Machine(1e6 if fast else 1e3, 0.001)
    line = Timeline(trace, maker("lru"), {0: slots}, reserve, machine, make_predictor(trace))
    line.run()
    tally, counts = line.tallies[DECODE], line.ahead.attributor.counts
    assert tally.hits + tally.misses == tally.requests
    assert counts.hits + counts.misses == tally.requests
    assert line.timing.read_bytes == tally.read_bytes + line.ahead.started_bytes
    assert counts.useful + counts.wasted <= counts.prefetched
    assert len(line.banks[0].resident) <= slots
    assert line.now == pytest.approx(line.timing.total_s)
    assert line.timing.total_s >= line.timing.compute_s


def test_without_a_predictor_the_timeline_is_the_plain_replay() -> None:
    """Time must not change what is read: the same misses, and the stall is their reading time."""
    trace = trace_of(made_up_events(40, 4, 16, 2, 5), 4, 16)
    line = Timeline(trace, maker("forecast"), {0: 16}, 2, Machine(1e4, 0.001), None)
    line.run()
    plain = replay(trace, maker("forecast"), {0: 16}, 2)[DECODE]
    assert plain.events == 160
    assert line.tallies[DECODE] == plain
    assert line.timing.stall_s == pytest.approx(plain.read_bytes / 1e4)


def test_a_layer_that_did_not_run_takes_no_time() -> None:
    """The MTP head's layer runs only where drafts are made; without a predictor every layer was counted each time."""
    trace = trace_of([visit(0, 1, 2), visit(1, 1, 2), visit(0, 1, 3), visit(0, 2, 3)], 2, 8)
    plan = Plan(("lru",), (1.0,), ("none", "blend"), Machine(1e4, 0.5))
    assert [row.compute_s for row in rows(trace, plan)] == [2.0, 2.0]
