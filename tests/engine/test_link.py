"""Waiting for the loader: lost replies, refused experts, deadlines, and messages that nobody asked for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.conftest import CHUNKS
from mtp_daemon.engine.errors import EngineStopping, ExpertUnreadable, LoaderTimeout
from mtp_daemon.engine.link_limits import Limits
from mtp_daemon.engine.stream import StreamSettings
from mtp_protocol.expert_messages import Filled, Resident
from support.reference import streamed_logits
from support.waiting import until, when

FAST = Limits(retry_s=0.2, deadline_s=20.0, loader_s=20.0)


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
    when(lambda: len(served.loader.needs) >= 1, served.life.stop)
    began = time.monotonic()
    with pytest.raises(EngineStopping):
        streamed_logits(served, CHUNKS[:1])
    assert time.monotonic() - began < 30  # the deadline is 60


def test_an_engine_told_to_stop_while_idle_leaves_its_loader(checkpoint: Path, serve: Callable[..., Any]) -> None:
    """An open socket would keep the process in ZeroMQ's goodbye for ever."""
    served = serve(checkpoint, 0.5)
    assert served.stream.link.alive
    served.life.stop()
    with pytest.raises(EngineStopping):
        served.stream.close()
    assert not served.stream.link.alive


def test_what_came_unasked_is_counted_with_its_bytes(checkpoint: Path, serve: Callable[..., Any]) -> None:
    served = serve(checkpoint, 0.5)
    stats = served.stream.stats
    served.loader.say(Filled(None, (Resident(0, 0, 0), Resident(0, 1, 1))))

    def arrived() -> bool:
        served.stream.link.poll()
        return stats.prefetched == 2

    until("the prefetched experts arrive", arrived)
    assert stats.prefetched_bytes == 2 * served.stream.geometry.banks[0].source_bytes
    assert (stats.hits, stats.misses, stats.bytes_read) == (0, 0, stats.prefetched_bytes)


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
