"""Recalls and resizes: slots are given up as soon as nothing reads them, and waves fit the pool as it is."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.conftest import CHUNKS
from engine.test_link import assert_equal
from mtp_daemon.engine.link_limits import Limits
from mtp_daemon.engine.stream import StreamSettings
from mtp_protocol.expert_messages import Limit, Need, Recall, Released
from support.reference import streamed_logits
from support.waiting import until, when


def test_recalls_are_answered_while_waiting_but_not_for_held_slots(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """A wait answers recalls; slots that this wave's graphs read are kept until those end."""
    served = serve(checkpoint, 1.0)
    link, residency = served.stream.link, served.stream.residency
    served.loader.prefetch(0, (0, 1, 2))
    until("the engine hears", lambda: (link.poll(), residency.resident == 3)[1])
    slots = residency.table(0)[:3].copy()
    residency.read(0, slots[:1])  # expert 0 is a hit of this wave
    served.loader.order(Recall(0, tuple(int(s) for s in slots)))
    demand = link.ask(0, [5])
    got: list[int] = []
    while arrived := link.collect(demand):
        got += arrived
    assert got == [5]
    until("the engine hears", lambda: (link.poll(), len(served.loader.released) >= 1)[1])
    given = {s for message in served.loader.released for s in message.slots}
    assert given == {int(slots[1]), int(slots[2])}
    assert residency.table(0)[0] == slots[0], "a recalled expert is there until it is released"
    residency.finished()
    link.release()
    until("the engine hears", lambda: len(served.loader.released) >= 2)
    assert isinstance(served.loader.needs[0], Need) and served.loader.needs[0].held_slots == (int(slots[0]),)


def test_a_recall_of_a_slot_we_were_never_told_of_is_answered(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """After a lost Filled the loader may want back what we do not know: silence would leave it waiting."""
    served = serve(checkpoint, 1.0)
    served.loader._banks[0].recalled[7] = (0, 0)
    served.loader._banks[0].free.remove(7)
    served.loader.say(Recall(0, (7,)))
    until("the engine hears", lambda: (served.stream.link.poll(), served.loader.released == [Released(0, (7,))])[1])


def test_recalls_that_waited_for_a_graph_are_answered_before_the_next_demand(
    checkpoint: Path, serve: Callable[..., Any]
) -> None:
    """The loader may count on those slots and say nothing until it has them: a wait that only answers what comes in
    while it waits would sit there until its deadline.
    """
    served = serve(checkpoint, 0.0, settings=StreamSettings(limits=Limits(retry_s=60.0)))
    link, residency = served.stream.link, served.stream.residency
    demand = link.ask(0, [0, 1])
    while link.collect(demand):
        pass
    held = residency.held(0)
    served.loader.order(Recall(0, held))
    until("the engine hears", lambda: (link.poll(), residency.recalls_pending == 2)[1])
    residency.finished()
    began = time.monotonic()
    demand = link.ask(1, [4])
    assert link.collect(demand) == [4]
    assert time.monotonic() - began < 30


def test_a_pool_that_shrinks_and_grows_before_the_next_wave_is_asked_for(
    checkpoint: Path, serve: Callable[..., Any]
) -> None:
    """The wave was given up as too large; that the pool has grown since must not make a wave that waits of it again."""
    served = serve(checkpoint, 0.8)
    link, residency, loader = served.stream.link, served.stream.residency, served.loader
    whole = residency.capacity(0)
    loader.mute = True
    demand = link.ask(0, [0, 1, 2, 3])
    loader.order(Limit((2,)))
    assert link.collect(demand) == [] and len(demand.missing) == 4
    loader.order(Limit((whole,)))
    until("the engine hears", lambda: (link.poll(), residency.capacity(0) == whole)[1])
    loader.mute = False
    again = link.ask(0, [0, 1])
    arrived: list[int] = []
    while more := link.collect(again):
        arrived += more
    assert sorted(arrived) == [0, 1]


@pytest.mark.parametrize("needs_before", [1, 2, 4, 7])
@pytest.mark.parametrize("slots", [2, 3, 5])
def test_a_pool_that_shrinks_in_the_middle_of_a_wave(
    needs_before: int, slots: int, checkpoint: Path, reference: list[Any], serve: Callable[..., Any]
) -> None:
    """The wave was sized for the larger pool: what is missing is asked for again in waves that fit. The same bits."""
    served = serve(checkpoint, 0.8)
    loader = served.loader
    loader.delay_s = 0.001
    when(lambda: len(loader.needs) >= needs_before, lambda: loader.resize(slots))
    assert_equal(streamed_logits(served, CHUNKS), reference)
    until("the engine hears", lambda: (served.stream.settle(), served.stream.residency.resident <= slots)[1])
    assert served.stream.residency.capacity(0) == slots
    loader.resize(25)
    assert_equal(streamed_logits(served, CHUNKS), reference)
    assert served.stream.stats.retries == 0 and not loader.errors


def test_the_loader_may_speak_while_decode_computes(
    checkpoint: Path, reference: list[Any], serve: Callable[..., Any]
) -> None:
    """Prefetches and recalls pour in while decode sits in MLX; nobody waits for anybody (10 s watchdog)."""
    served = serve(checkpoint, 0.5)
    stop = threading.Event()

    def pour() -> None:
        for i in range(2000):
            if stop.is_set():
                return
            served.loader.prefetch(i % 4, (i % 8, (i + 3) % 8))
            time.sleep(0.0005)

    pouring = threading.Thread(target=pour, daemon=True)
    pouring.start()
    began = time.monotonic()
    try:
        assert_equal(streamed_logits(served, CHUNKS), reference)
    finally:
        stop.set()
        pouring.join(10)
    assert time.monotonic() - began < 10
    assert not served.loader.errors
