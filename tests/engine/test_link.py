"""Waiting for the loader: lost replies, refused experts, deadlines, and loaders that die."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtp_daemon.engine.errors import EngineStopping, EnvironmentFailed, ExpertUnreadable, LoaderTimeout
from mtp_daemon.engine.link_limits import Limits
from mtp_daemon.engine.stream import DECODE, StreamSettings
from mtp_protocol.expert_messages import Filled, Limit, Need, Recall, Released, Resident
from support.checkpoints import make_checkpoint
from support.inline_loader import InlineLoader
from support.reference import reference_logits, streamed_logits
from support.waiting import until

CHUNKS = ([5, 9, 200, 17], [12], [400], [7])
FAST = Limits(retry_s=0.2, deadline_s=20.0, loader_s=20.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("link") / "m", "qwen3_next", quant="q4g64")


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> list[Any]:
    return reference_logits(checkpoint, CHUNKS)


def assert_equal(got: list[Any], want: list[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_lost_reply_is_asked_again(checkpoint: Path, reference: list[Any], serve: Callable[..., Any]) -> None:
    """A Filled that never arrives: asked again after a while with a new ticket, and the answer is the same."""
    served = serve(checkpoint, 0.5, settings=StreamSettings(limits=FAST))
    served.loader.drop_fills = 3
    assert_equal(streamed_logits(served, CHUNKS), reference)
    assert served.stream.stats.retries >= 1
    tickets = [n.ticket for n in served.loader.needs]
    assert tickets == sorted(set(tickets)), "a ticket was used twice"
    assert not served.loader.errors


def test_a_wait_ends_at_its_deadline_and_says_for_what(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """A loader that never answers must not be waited for for ever; a later request works again."""
    served = serve(checkpoint, 0.5, settings=StreamSettings(limits=Limits(retry_s=0.1, deadline_s=0.5)))
    served.loader.mute = True
    with pytest.raises(LoaderTimeout, match=r"did not deliver experts [\d, ]+ of layer 0 within 0\.5 s"):
        streamed_logits(served, CHUNKS[:1])
    served.loader.mute = False
    streamed_logits(served, CHUNKS[:1])


def test_an_unreadable_expert_fails_its_forward_only(
    checkpoint: Path, reference: list[Any], serve: Callable[..., Any]
) -> None:
    """The error names layer, expert and the reader's reason; after the repair everything works."""
    served = serve(checkpoint, 0.0)
    served.loader.fail = {(2, e) for e in range(8)}
    with pytest.raises(ExpertUnreadable, match=r"expert \d of layer 2 cannot be read: .* at offset 4096"):
        streamed_logits(served, CHUNKS[:1])
    served.loader.fail = set()
    assert_equal(streamed_logits(served, CHUNKS), reference)


def test_stop_ends_a_wait_at_once(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """An engine told to leave while its loader is silent must not sit out the deadline."""
    served = serve(checkpoint, 0.5)
    served.loader.mute = True
    _when(lambda: len(served.loader.needs) >= 1, served.life.stop)
    began = time.monotonic()
    with pytest.raises(EngineStopping):
        streamed_logits(served, CHUNKS[:1])
    assert time.monotonic() - began < 30  # the deadline is 60


def _when(condition: Callable[[], bool], action: Callable[[], None]) -> threading.Thread:
    """In another thread: do `action` as soon as `condition` holds."""

    def wait() -> None:
        until("what the action waits for", condition)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def _replace(served: Any, resident: dict[tuple[int, int], int] | None = None) -> None:
    """Kill the loader; the next one, of another epoch, takes its place, as the front would have it."""
    old: InlineLoader = served.loader
    old.kill()
    served.life.loader_dead(old.epoch)
    served.loader = InlineLoader(
        old.source, old.layout, served.region_fd, served.sockets, served.context, epoch=old.epoch + 1, resident=resident
    )
    served.life.loader_up(served.loader.epoch, served.loader.address)


@pytest.mark.parametrize("needs_before", [1, 2, 5, 9])
def test_a_loader_killed_while_decode_waits(
    needs_before: int, checkpoint: Path, reference: list[Any], serve: Callable[..., Any]
) -> None:
    """The wait goes on, the next loader is told Hello and asked for what is missing: the same bits."""
    served = serve(checkpoint, 0.25)
    first = served.loader
    first.delay_s = 0.002
    killer = _when(lambda: len(first.needs) >= needs_before, lambda: _replace(served))
    assert_equal(streamed_logits(served, CHUNKS), reference)
    killer.join(20)
    assert served.loader is not first
    served.stream.settle()  # if the kill came after the last wait, this is where the new loader is met
    assert served.stream.stats.rejoins == 2
    assert not served.loader.errors


def test_a_death_seen_while_arrivals_are_taken_is_not_forgotten(
    checkpoint: Path, reference: list[Any], serve: Callable[..., Any]
) -> None:
    """The news of the death can be the last thing taken before a wait returns; the next wait must not sit it out."""
    served = serve(checkpoint, 0.5, settings=StreamSettings(limits=FAST))
    link, first = served.stream.link, served.loader
    handle = link._handle

    def and_then_it_dies(happened: Any) -> None:
        handle(happened)
        if isinstance(happened, Filled) and served.loader is first:
            _replace(served)

    link._handle = and_then_it_dies
    assert_equal(streamed_logits(served, CHUNKS), reference)
    assert served.stream.stats.rejoins == 2 and served.stream.stats.retries == 0


def test_slots_stay_readable_between_loaders(checkpoint: Path, reference: list[Any], serve: Callable[..., Any]) -> None:
    """With the loader dead and no successor yet, what is resident is used as if nothing had happened."""
    served = serve(checkpoint, 1.0)
    assert_equal(streamed_logits(served, CHUNKS), reference)
    old = served.loader
    old.kill()
    served.life.loader_dead(old.epoch)
    assert_equal(streamed_logits(served, CHUNKS), reference)
    resident = old.resident()
    served.loader = InlineLoader(
        old.source, old.layout, served.region_fd, served.sockets, served.context, epoch=2, resident=resident
    )
    served.life.loader_up(2, served.loader.address)
    assert_equal(streamed_logits(served, CHUNKS), reference)
    assert served.stream.residency.resident == len(resident)
    assert not served.loader.reads, "Welcome listed what is resident: nothing is read again"


def test_a_loader_of_another_model_ends_the_request_with_its_reason(
    checkpoint: Path, serve: Callable[..., Any]
) -> None:
    """At once, and not after the minute that a loader may take to come back."""
    served = serve(checkpoint, 0.5)
    old = served.loader
    old.kill()
    served.life.loader_dead(old.epoch)
    served.loader = InlineLoader(old.source, old.layout, served.region_fd, served.sockets, served.context, epoch=2)
    served.loader.turns_away = True
    served.life.loader_up(2, served.loader.address)
    with pytest.raises(EnvironmentFailed, match="another model"):
        streamed_logits(served, CHUNKS)


def test_hello_comes_after_the_running_graph(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """A new loader may write any slot once it has heard Hello: no graph may read one then, built or running."""
    served = serve(checkpoint, 1.0)
    stream = served.stream
    streamed_logits(served, CHUNKS)
    with stream.forward([3], DECODE):
        served.loaded.trunk.hidden(mx.array([[3]]), served.loaded.trunk.make_cache())
    assert stream.residency.held(3), "the forward is built and unevaluated"
    order: list[str] = []
    connect, finish = stream.link._socket.connect, stream.link._finish
    stream.link._socket.connect = lambda up: (order.append("hello"), connect(up))  # type: ignore[method-assign]
    stream.link._finish = lambda: (order.append("finish"), finish())  # type: ignore[assignment,func-returns-value]
    _replace(served)
    stream.link.poll()
    assert order == ["finish", "hello"]
    assert not stream.residency.held(3) and not stream.residency.resident


def test_what_came_unasked_is_counted_with_its_bytes(checkpoint: Path, serve: Callable[..., Any]) -> None:
    served = serve(checkpoint, 0.5)
    stats = served.stream.stats
    served.loader.say(Filled(None, (Resident(0, 0, 0), Resident(0, 1, 1))))

    def arrived() -> bool:
        served.stream.link.poll()
        return stats.prefetched == 2

    until("the prefetched experts arrive", arrived)
    assert stats.prefetched_bytes == 2 * served.stream.geometry.banks[0].source_bytes
    assert (stats.hits, stats.misses, stats.bytes_read) == (0, 0, 0)


def test_messages_of_another_life_are_dropped_and_counted(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """A socket can deliver a dead peer's queue: a Filled of another epoch must not become part of the map."""
    served = serve(checkpoint, 0.5)
    epochs = served.loader._epochs
    served.loader._epochs = b"\x07" * 16
    served.loader.say(Filled(None, (Resident(0, 0, 0),)))
    served.loader._epochs = b"short"
    served.loader.say(Filled(None, (Resident(0, 0, 0),)))
    stats = served.stream.stats

    def arrived() -> bool:
        served.stream.link.poll()
        return stats.stale_messages + stats.bad_messages >= 2

    until("the stale messages arrive", arrived)
    assert stats.bad_messages >= 1
    assert served.stream.residency.resident == 0
    served.loader._epochs = epochs


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
    _when(lambda: len(loader.needs) >= needs_before, lambda: loader.resize(slots))
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
