"""How requests end: deaths, refusals, lost tokens, a shutdown; what is kept, and what is counted."""

import pytest

from mtp_daemon.errors import RequestError
from mtp_daemon.front.request import MAX_KEPT
from mtp_daemon.front.sessions import DEATHS_ON_ONE_REQUEST
from mtp_protocol import client_messages as c
from mtp_protocol import engine_messages as e
from support.session_world import World


@pytest.fixture
def world() -> World:
    world = World()
    for client in (b"a", b"b"):
        world.connect(client)
    return world


def _started(world: World) -> list[bytes]:
    return [m.request for m in world.engine if isinstance(m, e.Start)]


def test_poisoned_request_ends_alone(world: World) -> None:
    """A request that kills three engines ends with their last words; the one behind it is started."""
    world.submit(b"a")
    world.submit(b"b")
    for _ in range(DEATHS_ON_ONE_REQUEST):
        world.sessions.engine_is_ready(world.now)
        world.sessions.engine_is_gone("boom", world.now)
    world.pump()
    failed = [m for m in world.sockets[b"a"].heard if isinstance(m, c.Failed)]
    assert len(failed) == 1 and "died 3 times" in failed[0].text and "boom" in failed[0].text
    world.sessions.engine_is_ready(world.now)
    assert len(set(_started(world))) == 2


def test_progress_forgives_deaths(world: World) -> None:
    """Engines that die after getting tokens on do not add up to a poisoned request."""
    world.submit(b"a")
    for i in range(5):
        world.sessions.engine_is_ready(world.now)
        request = _started(world)[-1]
        world.sessions.engine_says(e.Tokens(request, i, (i,), "x"), world.now)
        world.sessions.engine_is_gone("boom", world.now)
    assert world.sessions.busy and world.sessions.counts["failed"] == 0


def test_what_the_user_can_mend_counts_as_refused(world: World) -> None:
    """A prompt that is too long is no failure of the service's; an operator looks at those that are."""
    world.sessions.engine_is_ready(world.now)
    for kind in ("too_long", "environment"):
        world.submit(b"a")
        world.sessions.engine_says(e.Failed(_started(world)[-1], kind, "no"), world.now)  # type: ignore[arg-type]
    assert (world.sessions.counts["refused"], world.sessions.counts["failed"]) == (1, 1)


def test_lost_tokens_are_a_bug_that_is_told(world: World) -> None:
    """A gap in the engine's numbering ends the request as internal; it is never papered over."""
    world.sessions.engine_is_ready(world.now)
    world.submit(b"a")
    request = _started(world)[0]
    world.sessions.engine_says(e.Tokens(request, 0, (1, 2), "x"), world.now)
    world.sessions.engine_says(e.Tokens(request, 3, (4,), "x"), world.now)
    world.pump()
    last = world.sockets[b"a"].heard[-1]
    assert isinstance(last, c.Failed) and last.kind == "internal" and "2… were due" in last.text
    world.submit(b"a")
    assert len(_started(world)) == 1, "the engine has not let go of the first one yet"
    world.sessions.engine_says(e.Finished(request, "cancelled", c.Usage(1, 3), {}), world.now)
    assert len(_started(world)) == 2


def test_shutdown_fails_the_waiting_and_lets_the_running_end(world: World) -> None:
    """Draining: those that wait are told at once, the running one ends as it would, newcomers are refused."""
    world.sessions.engine_is_ready(world.now)
    world.submit(b"a")
    world.submit(b"b")
    world.sessions.close_queue(RequestError("shutdown", "stopping"), world.now)
    world.pump()
    assert isinstance(world.sockets[b"b"].heard[-1], c.Failed)
    with pytest.raises(RequestError, match="stopping"):
        world.sessions.submit(b"b", c.Submit(1, prompt="x"), world.now)
    world.sessions.engine_says(e.Finished(_started(world)[0], "stop", c.Usage(1, 0), {}), world.now)
    world.pump()
    assert isinstance(world.sockets[b"a"].heard[-1], c.Finished)
    assert not world.sessions.busy


def test_kept_requests_are_bounded(world: World) -> None:
    """What is kept for clients that left is at most so many requests; the oldest go first."""
    world.sessions.engine_is_ready(world.now)
    for i in range(MAX_KEPT + 10):
        world.now = float(i)
        world.submit(b"a", keep_s=50.0)
        request = _started(world)[-1]
        world.sessions.engine_says(e.Finished(request, "stop", c.Usage(1, 0), {}), world.now)
        world.pump()
    assert len(world.sessions.requests) == MAX_KEPT
    assert list(world.sessions.requests) == _started(world)[10:]


def test_stray_messages_are_counted(world: World) -> None:
    """A message about a request that the engine was not given changes nothing."""
    world.sessions.engine_is_ready(world.now)
    world.submit(b"a")
    world.sessions.engine_says(e.Tokens(b"other", 0, (1,), "x"), world.now)
    assert world.sessions.counts["stray"] == 1
    assert len(world.sessions.requests[_started(world)[0]].log) == 0
