"""The three real processes and a real (tiny, random) checkpoint: what the client gets is what mlx-lm gives."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mtp_client.client import Client
from mtp_client.errors import RequestRefused
from mtp_protocol.client_messages import Finished, Tokens
from mtp_protocol.sampling import Sampling
from support.checkpoints import Head, make_checkpoint
from support.front_process import FrontProcess
from support.served_model import ServedModel, greedy
from support.waiting import until

PROMPT = tuple(range(3, 40, 2))
N = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", "qwen3_next", head=Head())


@pytest.fixture(scope="module")
def front(model: Path) -> Iterator[FrontProcess]:
    """Slow reads and a quarter of the experts: an answer lasts long enough to be hit in the middle."""
    with ServedModel(model, pool="25%", delay_ms="1", depth_controller="constant").wait_ready() as front:
        yield front


def reference(model: Path, prompt: tuple[int, ...], count: int) -> list[int]:
    return greedy(model, prompt, count)


def ask(client: Client, **fields: object) -> tuple[list[int], Finished]:
    ids: list[int] = []
    for event in client.generate(**{"prompt_ids": PROMPT, "max_tokens": N, **fields}):  # type: ignore[arg-type]
        if isinstance(event, Tokens):
            assert event.seq == len(ids)
            ids += event.ids
    assert isinstance(event, Finished)
    return ids, event


def ask_and_kill(
    front: FrontProcess, roles: tuple[str, ...], with_signal: int = signal.SIGKILL, **fields: object
) -> tuple[list[int], Finished]:
    """Kill these children once ten tokens have come; the answer all the same."""
    ids: list[int] = []
    killed = False
    pids = [front.child_pid(role) for role in roles]
    with front.client() as client:
        for event in client.generate(**{"prompt_ids": PROMPT, "max_tokens": N, **fields}):  # type: ignore[arg-type]
            if isinstance(event, Tokens):
                assert event.seq == len(ids)
                ids += event.ids
                if len(ids) >= 10 and not killed:
                    killed = True
                    for pid in pids:
                        os.kill(pid, with_signal)
    assert killed and isinstance(event, Finished)
    children = front.status()["children"]
    assert all(children[role]["pid"] != pid for role, pid in zip(roles, pids, strict=True))
    return ids, event


@pytest.mark.parametrize("depth", [0, 2])
def test_tokens_equal_mlx_lm(front: FrontProcess, model: Path, depth: int) -> None:
    """Through all three processes: plain and with drafts, the ids are mlx-lm's own."""
    with front.client() as client:
        ids, finished = ask(client, depth=depth)
    assert ids == reference(model, PROMPT, N)
    assert finished.reason == "length"
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (len(PROMPT), N)
    assert finished.stats["hits"] > 0 and finished.stats["misses"] > 0
    assert (finished.stats.get("drafted", 0) > 0) == (depth > 0)


@pytest.mark.parametrize("roles", [("engine",), ("loader",), ("engine", "loader")])
def test_killed_children_change_no_token(front: FrontProcess, model: Path, roles: tuple[str, ...]) -> None:
    """With the real programs: kill -9 in the middle of an answer; the same tokens, each once."""
    ids, finished = ask_and_kill(front, roles, depth=2)
    assert ids == reference(model, PROMPT, N)
    assert finished.usage.completion_tokens == N
    assert finished.stats["restarts"] == ("engine" in roles)
    until("both are back", lambda: all(c["state"] == "ready" for c in front.status()["children"].values()))
    with front.client() as client:
        assert ask(client)[0] == reference(model, PROMPT, N)


def test_a_child_that_is_told_to_leave_behind_the_fronts_back_is_a_death(front: FrontProcess, model: Path) -> None:
    """SIGTERM from whoever thinks memory is short: the request is not the service's last."""
    ids, finished = ask_and_kill(front, ("engine",), signal.SIGTERM, depth=2)
    assert ids == reference(model, PROMPT, N) and finished.stats["restarts"] == 1


def test_seeded_answer_survives_a_kill(front: FrontProcess) -> None:
    """Over a restart: with a seed the text is the same, whatever happened on the way."""
    drawn = Sampling(temperature=1.0, seed=7)
    with front.client() as client:
        undisturbed = ask(client, sampling=drawn)[0]
        assert ask(client, sampling=Sampling(temperature=1.0, seed=8))[0] != undisturbed
    assert ask_and_kill(front, ("engine",), sampling=drawn)[0] == undisturbed


def test_cancel_leaves_nothing_behind(front: FrontProcess, model: Path) -> None:
    """Cancelled at token k, the same prompt again gives what it gives cold."""
    with front.client() as client:
        for k in (0, 1, 4, 8):
            answered = client.generate(prompt_ids=PROMPT, max_tokens=N)
            got = 0
            while got < k:
                event = next(answered)
                got += len(event.ids) if isinstance(event, Tokens) else 0
            finished = answered.cancel()
            assert finished is not None and finished.reason == "cancelled"
            assert ask(client, max_tokens=12)[0] == reference(model, PROMPT, N)[:12]


def test_clients_do_not_mix(front: FrontProcess, model: Path) -> None:
    """Two clients at once, each gets what it would get alone."""
    other = PROMPT[::-1]
    with front.client() as one, front.client() as two:
        first = one.generate(prompt_ids=PROMPT, max_tokens=20)
        second = two.generate(prompt_ids=other, max_tokens=20)
        ids = [[i for e in a if isinstance(e, Tokens) for i in e.ids] for a in (second, first)]
    assert ids == [reference(model, other, 20), reference(model, PROMPT, 20)]


def test_smallest_prompts(front: FrontProcess, model: Path) -> None:
    """One token is a prompt; an empty text is answered or refused by name, and the service goes on either way."""
    with front.client() as client:
        assert ask(client, prompt_ids=(5,), max_tokens=6)[0] == reference(model, (5,), 6)
        try:
            assert len(ask(client, prompt_ids=None, prompt="", raw=True, max_tokens=3)[0]) <= 3
        except RequestRefused as error:
            assert "empty" in str(error)
        assert ask(client, prompt_ids=(5,), max_tokens=0)[0] == []


def test_no_expert_file_is_mapped(front: FrontProcess, model: Path) -> None:
    """Experts are read, never mapped: no file of the model is in the loader's maps."""
    with front.client() as client:
        ask(client, max_tokens=4)
    maps = psutil.Process(front.child_pid("loader")).memory_maps()
    assert [m.path for m in maps if m.path.startswith(str(model))] == []


def test_front_killed_leaves_no_orphan(model: Path) -> None:
    """Kill -9 of the front while it answers: both real children leave within five seconds."""
    with ServedModel(model, pool="25%", delay_ms="2").wait_ready() as front, front.client() as client:
        answered = client.generate(prompt_ids=PROMPT, max_tokens=400)
        next(e for e in answered if isinstance(e, Tokens))
        children = front.descendants()
        assert len(children) == 2
        front.process.kill()
        _gone, alive = psutil.wait_procs(children, timeout=5)
        assert alive == []


def test_model_that_cannot_be_served(tmp_path: Path) -> None:
    """Not a MoE model, or none at all: exit code 2, named, no traceback, nothing left running."""
    with ServedModel(tmp_path / "nothing") as front:
        errors = front.errors()
        assert front.process.returncode == 2 and str(tmp_path / "nothing") in errors
    empty = tmp_path / "empty"
    empty.mkdir()
    with ServedModel(empty) as front:
        errors = front.errors()
        assert front.process.returncode in (2, 4) and str(empty) in errors and "Traceback" not in errors


def test_pool_below_the_minimum(model: Path) -> None:
    """The minimum is named when the pool is too small for the real model."""
    with ServedModel(model, pool="1KiB") as front:
        errors = front.errors()
        assert front.process.returncode == 2 and "needs at least" in errors
