"""kill -9 of each process at each moment of its life, with the real programs. `make test-full` repeats every cell.

A moment is reached by watching (a child in the process table, an event at the client, a fact in a beat), and held by
stopping the process that would end it; never by sleeping for so long.

`pytest --full tests/process/test_kill_matrix.py` kills each of 3 processes at each of 8 moments 20 times, and ends with
a table of what it found.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from mtp_client.errors import ClientError, ConnectionLost
from mtp_protocol.client_messages import Tokens
from support.checkpoints import Head, make_checkpoint
from support.kill_moments import (
    HANG_S,
    MOMENTS,
    PROGRAMS,
    PROMPT,
    ROLES,
    Moment,
    N,
    all_ready,
    answer,
    books_add_up,
    find_children,
    kill_front,
    nothing_left_and_next_start_works,
    restarts,
)
from support.kill_table import KILLS, LONGEST_S
from support.served_model import ServedModel, greedy
from support.waiting import until

CHUNK = 16
SAMPLE = {
    ("engine", "start-up"), ("loader", "while filling"), ("engine", "while filling"), ("loader", "while recalling"),
    ("engine", "while recalling"), ("loader", "between requests"), ("front", "while recalling"),
    ("engine", "at shutdown"),
}  # fmt: skip
TOLD_S = 2.0  # how soon a client hears of the front's death
DEATHS = 100  # in a row that a service takes; the settings allow no more


def cells() -> Iterator[Any]:
    for role in ROLES:
        for moment in MOMENTS:
            for repeat in range(20):
                whole = repeat > 0 or (role, moment) not in SAMPLE
                marks = [pytest.mark.full] if whole else []
                yield pytest.param(role, moment, marks=marks, id=f"{role}-{moment}-{repeat}".replace(" ", "-"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", "qwen3_next", head=Head())


def serve(model: Path) -> ServedModel:
    return ServedModel(
        model, pool="50%", delay_ms="2", chunk=str(CHUNK), restart_limit=str(DEATHS), depth_controller="constant"
    )


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[Callable[[], ServedModel]]:
    """For the deaths that a front survives: one front for all of them, a fresh one before its patience ends."""
    with ExitStack() as stack:
        served: list[ServedModel] = []

        def front() -> ServedModel:
            if not served or max(restarts(served[0], role) for role in PROGRAMS) > DEATHS - 10:
                stack.close()
                served[:] = [stack.enter_context(serve(model))]
                served[0].wait_ready()
            return served[0]

        yield front


@pytest.mark.parametrize(("role", "moment"), list(cells()))
def test_killed(role: str, moment: str, model: Path, request: pytest.FixtureRequest) -> None:
    """A child's death is a pause, the front's is told at once and takes its children along."""
    right = greedy(model, PROMPT, N, CHUNK)
    limit_s = LONGEST_S
    if moment == "start-up":
        wait_s = killed_at_start(role, model, right)
    elif moment == "at shutdown":
        wait_s = killed_at_shutdown(role, model, right)
    elif role == "front":
        limit_s = TOLD_S
        with serve(model).wait_ready() as front:
            wait_s = front_killed(front, moment, right)
    else:
        wait_s = child_killed(request.getfixturevalue("shared")(), role, moment, right)
    # The whole matrix runs by itself; the sample among other tests, which take the processor from it.
    assert wait_s < limit_s * (1 if request.config.getoption("--full") else 3), "waited for too long"
    request.config.stash[KILLS].passed(role, moment, wait_s)


# --- the three ways it goes -------------------------------------------------------------------------------------------


def child_killed(front: ServedModel, role: str, moment: str, right: list[int]) -> float:
    until("both are ready", lambda: all_ready(front), HANG_S)
    before = {name: restarts(front, name) for name in PROGRAMS}
    with front.client() as client:
        if moment == "between requests":
            assert answer(client) == right
            os.kill(front.child_pid(role), signal.SIGKILL)
            killed_at = time.monotonic()
            assert answer(client) == right
            wait_s = time.monotonic() - killed_at
        else:
            at = Moment(front, moment, role)
            assert answer(client, at) == right
            wait_s = at.wait_s
            with suppress(ClientError):  # a loader that is not back yet has its whole pool anyway
                client.resize("50%")
        assert answer(client) == right
    until("the books add up", lambda: books_add_up(front), HANG_S)
    before[role] += 1
    assert {name: restarts(front, name) for name in PROGRAMS} == before, front.status()["children"]
    return wait_s


def front_killed(front: ServedModel, moment: str, right: list[int]) -> float:
    at = Moment(front, moment, "front")
    with front.client() as client:
        if moment == "between requests":
            assert answer(client) == right
            kill_front(front)
            killed_at = time.monotonic()
            with pytest.raises(ConnectionLost):
                client.status()
            at.wait_s = time.monotonic() - killed_at
        else:
            with pytest.raises(ConnectionLost, match="died"):
                answer(client, at)
    nothing_left_and_next_start_works(front, right)
    return at.wait_s


def killed_at_start(role: str, model: Path, right: list[int]) -> float:
    """Until the service is there, by itself or, when the front was killed, by the next start."""
    with serve(model) as front:
        pids = until("both children", lambda: find_children(front))
        if role == "front":
            kill_front(front)
            return nothing_left_and_next_start_works(front, right)
        os.kill(pids[role], signal.SIGKILL)
        killed_at = time.monotonic()
        front.wait_ready()
        wait_s = time.monotonic() - killed_at
        with front.client() as client:
            assert answer(client) == right
        assert restarts(front, role) == 1
        assert front.stop() == 0
    return wait_s


def killed_at_shutdown(role: str, model: Path, right: list[int]) -> float:
    """The front drains: the answer may end, and does, or its client is told; a death then stops nothing.

    Until the service has stopped.
    """
    with serve(model).wait_ready() as front:
        children = front.descendants()
        pids = {"front": front.process.pid, **{name: front.child_pid(name) for name in PROGRAMS}}
        ids: list[int] = []
        with front.client() as client:
            answered = client.generate(prompt_ids=PROMPT, max_tokens=N, depth=2)
            ids += next(e for e in answered if isinstance(e, Tokens)).ids
            front.process.terminate()
            until("it drains", lambda: client.status()["phase"] == "draining")
            os.kill(pids[role], signal.SIGKILL)
            killed_at = time.monotonic()
            with suppress(ClientError):
                for event in answered:
                    ids += event.ids if isinstance(event, Tokens) else ()
        assert ids == right[: len(ids)]
        code = front.process.wait(HANG_S)
        wait_s = time.monotonic() - killed_at
        assert code == (-signal.SIGKILL if role == "front" else 0), front.errors()
        assert psutil.wait_procs(children, timeout=5)[1] == []
        nothing_left_and_next_start_works(front, right)
    return wait_s
