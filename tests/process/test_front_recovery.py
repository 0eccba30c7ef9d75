"""Children that die, hang or talk nonsense at every moment: the client sees a pause, or one clear error."""

import os
import signal
import subprocess
from typing import Any

import pytest

from mtp_client.errors import ServiceError
from mtp_protocol.client_messages import Finished, Tokens
from support.fake_children import answer
from support.front_process import FrontProcess
from support.waiting import until

N = 20


def ask(front: FrontProcess, prompt: str = "a prompt", n: int = N) -> tuple[list[int], Finished]:
    """The ids a client gets, in the order of their numbers (checked: no gap, no repeat), and the last word."""
    ids: list[int] = []
    with front.client() as client:
        for event in client.generate(prompt, max_tokens=n):
            if isinstance(event, Tokens):
                assert event.seq == len(ids)
                ids += event.ids
            elif isinstance(event, Finished):
                return ids, event
    raise AssertionError("the answer ended without a word")


@pytest.mark.parametrize("moment", ["prefill", "token:0", "token:7", "token:19"])
def test_engine_death_is_a_pause(moment: str) -> None:
    """The engine dies in prefill, at the first, a middle and the last token; the same tokens arrive, each once."""
    with FrontProcess({"engine": [{"die_at": moment}, {}]}).wait_ready() as front:
        ids, finished = ask(front)
        assert ids == answer("a prompt", N)
        assert finished.usage.completion_tokens == N
        assert finished.stats["restarts"] == 1
        status = front.status()
        assert status["children"]["engine"]["restarts"] == 1
        assert "boom" in status["children"]["engine"]["last_error"]
        until("EngineUp", lambda: front.seen("loader", 1)[:4] == ["Pool", "EngineUp", "EngineDead", "EngineUp"])


@pytest.mark.parametrize("role", ["engine", "loader"])
def test_killed_mid_answer(role: str) -> None:
    """Kill -9 of a child while an answer runs; the answer is the same and the service goes on."""
    with FrontProcess({"engine": [{"token_every_s": 0.01}]}).wait_ready() as front, front.client() as client:
        ids: list[int] = []
        for event in client.generate("a prompt", max_tokens=60):
            if isinstance(event, Tokens):
                ids += event.ids
                if len(ids) == 5:
                    os.kill(front.child_pid(role), signal.SIGKILL)
        assert ids == answer("a prompt", 60)
        until("the child is back", lambda: front.status()["children"][role]["state"] == "ready")
        assert ask(front)[0] == answer("a prompt", N)


def test_loader_death_keeps_region_and_engine() -> None:
    """A new loader maps the same region; the engine lives on and is told Dead, then Up."""
    with FrontProcess().wait_ready() as front:
        engine = front.child_pid("engine")
        os.kill(front.child_pid("loader"), signal.SIGKILL)
        until("the loader is back", lambda: front.status()["children"]["loader"]["state"] == "ready")
        assert front.child_pid("engine") == engine
        until("LoaderUp", lambda: front.seen("engine", 1) == ["Pool", "LoaderUp", "LoaderDead", "LoaderUp"])
        until("EngineUp", lambda: front.seen("loader", 2) == ["Pool", "EngineUp"])
        until("its beat", lambda: front.status()["experts"]["loaders_that_mapped"] == 2)


def test_hung_engine_is_killed() -> None:
    """A busy engine that beats and does not move is killed after the progress limit; the answer goes on."""
    script = {"engine": [{"hang_at": "token:3"}, {}]}
    with FrontProcess(script, progress_limit_s=2.0).wait_ready() as front:
        assert ask(front)[0] == answer("a prompt", N)
        assert "without progress" in front.status()["children"]["engine"]["last_error"]


@pytest.mark.parametrize("role", ["engine", "loader"])
def test_silent_child_is_killed(role: str) -> None:
    """A child without beats is killed after the beat limit; SIGSTOP makes a real one silent."""
    with FrontProcess(beat_limit_s=2.0).wait_ready() as front:
        os.kill(front.child_pid(role), signal.SIGSTOP)
        until("killed", lambda: front.status()["children"][role]["restarts"] == 1)
        assert "no beat" in front.status()["children"][role]["last_error"]
        assert ask(front)[0] == answer("a prompt", N)


def test_sleep_of_the_machine_kills_nobody() -> None:
    """All three are stopped for longer than the beat limit, as when a laptop sleeps: nobody is held to be hung."""
    script = {"engine": [{"token_every_s": 0.02}]}
    with FrontProcess(script, beat_limit_s=2.0, progress_limit_s=2.0).wait_ready() as front:
        pids = [front.process.pid, front.child_pid("engine"), front.child_pid("loader")]
        with front.client() as client:
            ids: list[int] = []
            for event in client.generate("a prompt", max_tokens=50):
                if isinstance(event, Tokens):
                    ids += event.ids
                    if len(ids) == 5:
                        for pid in pids:
                            os.kill(pid, signal.SIGSTOP)
                        subprocess.run(["sleep", "3"], check=True)
                        for pid in pids:
                            os.kill(pid, signal.SIGCONT)
            assert ids == answer("a prompt", 50)
        status = front.status()
        assert [status["children"][r]["restarts"] for r in ("engine", "loader")] == [0, 0]
        assert status["stopped_s"] > 1.0


@pytest.mark.parametrize("step", [{"garbage_at": "ready"}, {"garbage_at": "token:2"}])
def test_garbage_from_the_engine(step: dict[str, Any]) -> None:
    """Bytes that are no message cost that engine its life, not the service or the answer."""
    with FrontProcess({"engine": [step, {}]}).wait_ready() as front:
        assert ask(front)[0] == answer("a prompt", N)
        status = front.status()
        assert status["bad_messages_of_children"] == 1
        assert "no message" in status["children"]["engine"]["last_error"]


def test_request_that_kills_engines_is_given_up_alone() -> None:
    """A poisoned request ends with an error that names the last words; the next request is served."""
    script = {"engine": [{"die_at": "token:0"}, {"die_at": "token:0"}, {"die_at": "token:0"}, {}]}
    with FrontProcess(script).wait_ready() as front:
        with pytest.raises(ServiceError, match=r"died 3 times on this request.*boom at token:0"):
            ask(front)
        assert ask(front)[0] == answer("a prompt", N)


def test_restarts_end_and_say_why() -> None:
    """A child that dies again and again is given up; clients and status hear its last error line, and nobody waits."""
    script = {"loader": [{}, {"die_at": "start"}]}
    with FrontProcess(script, restart_limit=2).wait_ready() as front:
        os.kill(front.child_pid("loader"), signal.SIGKILL)
        until("given up", lambda: front.status()["children"]["loader"]["state"] == "given up")
        with pytest.raises(ServiceError, match=r"loader cannot be kept alive.*boom at start"):
            ask(front)
        assert front.stop() == 0


def test_running_answer_ends_when_the_loader_is_given_up() -> None:
    """An answer that waits for a loader that never comes back ends with an error, never waits for ever."""
    script = {"loader": [{}, {"die_at": "start"}], "engine": [{"hang_at": "token:3"}]}
    with FrontProcess(script, restart_limit=1).wait_ready() as front, front.client() as client:
        answered = client.generate("a prompt", max_tokens=N)
        for event in answered:
            if isinstance(event, Tokens) and event.seq + len(event.ids) == 3:
                break
        os.kill(int(client.status()["children"]["loader"]["pid"]), signal.SIGKILL)
        with pytest.raises(ServiceError, match="loader cannot be kept alive"):
            list(answered)


def test_another_model_under_the_restarted_loader() -> None:
    """The checkpoint was replaced while we served: nothing goes on with other bytes; the client is told."""
    with FrontProcess({"loader": [{}, {"geometry": "other"}]}).wait_ready() as front:
        os.kill(front.child_pid("loader"), signal.SIGKILL)
        until("given up", lambda: front.status()["children"]["loader"]["state"] == "given up")
        with pytest.raises(ServiceError, match="not those that the service was started with"):
            ask(front)
