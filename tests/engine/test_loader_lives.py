"""Loaders that die, come again or are another model's: what the engine still reads, and what it asks anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.conftest import CHUNKS
from engine.test_link import FAST, assert_equal
from mtp_daemon.engine.errors import EnvironmentFailed
from mtp_daemon.engine.stream import DECODE, StreamSettings
from mtp_protocol.expert_messages import Filled
from support.inline_loader import InlineLoader
from support.reference import streamed_logits
from support.waiting import when


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
    killer = when(lambda: len(first.needs) >= needs_before, lambda: _replace(served))
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
