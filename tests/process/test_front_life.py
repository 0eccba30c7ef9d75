"""Start, stop and death of the front itself: one daemon a directory, nothing left behind, no orphans."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mtp_client.errors import ConnectionLost, NotRunning, ServiceError
from mtp_protocol.client_messages import Accepted, Finished, Tokens
from mtp_protocol.run_directory import socket_directory
from support.fake_children import answer
from support.front_process import DEADLINE_S, FrontProcess
from support.waiting import until


def gone(processes: list[psutil.Process]) -> bool:
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


def test_second_daemon_is_refused() -> None:
    """The second says "already running (pid)" with its own exit code; the first keeps its clients."""
    slow = {"engine": [{"token_every_s": 0.01}]}
    with FrontProcess(slow).wait_ready() as front, front.client() as client:
        running = client.generate("a prompt", max_tokens=300)
        assert isinstance(next(running), Accepted)
        second = front.spawn()
        errors = second.communicate(timeout=DEADLINE_S)[1]
        assert second.returncode == 3
        assert f"already running (pid {front.process.pid})" in errors
        ids = [i for event in running if isinstance(event, Tokens) for i in event.ids]
        assert ids == answer("a prompt", 300)


def test_start_after_kill() -> None:
    """Kill -9 of the front: the children go with it, and the next start on the same directory serves."""
    with FrontProcess().wait_ready() as front:
        children = front.descendants()
        assert len(children) == 2
        front.process.kill()
        front.process.wait()
        until("no orphans", lambda: gone(children), 5.0)
        again = front.spawn()
        try:
            front.wait_ready(again)
            with front.client() as client:
                assert client.welcome.pid == again.pid
        finally:
            again.terminate()
            again.communicate(timeout=DEADLINE_S)
        assert again.returncode == 0


def test_client_says_at_once_that_the_daemon_died() -> None:
    """The front is killed mid-stream; the client's wait ends with an error in well under a second."""
    with FrontProcess({"engine": [{"hang_at": "token:3"}]}).wait_ready() as front, front.client() as client:
        running = client.generate("a prompt", max_tokens=10)
        for event in running:
            if isinstance(event, Tokens) and event.seq + len(event.ids) == 3:
                break
        front.process.kill()
        killed = time.monotonic()
        with pytest.raises(ConnectionLost, match="died"):
            next(running)
        assert time.monotonic() - killed < 2.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_lets_the_answer_finish(number: signal.Signals) -> None:
    """A signal drains: the running answer ends as it would have, waiting ones are told, nothing is left behind."""
    with FrontProcess({"engine": [{"token_every_s": 0.005}]}).wait_ready() as front, front.client() as client:
        running, waiting = client.generate("a", max_tokens=50), client.generate("b", max_tokens=50)
        next(waiting)
        children = front.descendants()
        front.process.send_signal(number)
        events = list(running)
        assert isinstance(events[-1], Finished)
        assert [i for e in events if isinstance(e, Tokens) for i in e.ids] == answer("a", 50)
        with pytest.raises(ServiceError, match="the service is stopping"):
            list(waiting)
        assert front.process.wait(DEADLINE_S) == 0
        assert gone(children)
        assert list(socket_directory(front.run_dir).glob("*.sock")) == []


def test_stop_ends_an_answer_at_the_deadline() -> None:
    """An answer that would go on past the deadline ends with "shutdown"; stopping is bounded."""
    script = {"engine": [{"token_every_s": 0.05}]}
    with FrontProcess(script, stop_deadline_s=0.3).wait_ready() as front, front.client() as client:
        running = client.generate("a", max_tokens=8000)
        assert isinstance(next(running), Accepted)
        begun = time.monotonic()
        front.process.send_signal(signal.SIGTERM)
        with pytest.raises(ServiceError, match="the service is stopping"):
            list(running)
        assert front.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - begun < 8.0


def test_stop_ladder_ends_with_sigkill() -> None:
    """Children that ignore both the message and SIGTERM are killed and reaped."""
    deaf = {"ignore_stop": True, "ignore_term": True}
    with FrontProcess({"engine": [deaf], "loader": [deaf]}).wait_ready() as front:
        children = front.descendants()
        assert front.stop() == 0
        assert gone(children)
        assert "Stop" in front.seen("engine", 1) and "Stop" in front.seen("loader", 1)


def test_second_signal_stops_at_once() -> None:
    """A second Ctrl-C does not wait for the answer or for the children."""
    deaf = {"ignore_stop": True, "ignore_term": True, "token_every_s": 0.05}
    front = FrontProcess({"engine": [deaf], "loader": [deaf]}, stop_deadline_s=600.0).wait_ready()
    with front, front.client() as client:
        running = client.generate("a", max_tokens=8000)
        next(running)
        children = front.descendants()
        front.process.send_signal(signal.SIGINT)
        with pytest.raises(ServiceError, match="the service is stopping"):
            list(client.generate("b"))
        begun = time.monotonic()
        front.process.send_signal(signal.SIGINT)
        assert front.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - begun < 3.0
        assert gone(children)


def test_sigterm_while_loading_leaves_no_orphans() -> None:
    """Stopped before it ever served: children gone, nothing served, exit code 0."""
    with FrontProcess(
        {"loader": [{"hang_at": "ready", "mute_at": "ready"}], "engine": [{"ignore_stop": True}]}
    ) as front:
        until("both run", lambda: len(front.descendants()) == 2)
        children = front.descendants()
        assert front.stop() == 0
        assert gone(children)


@pytest.mark.parametrize(
    ("failed", "code"), [(["bad_request", "no SwitchGLU in this model"], 2), (["environment", "shard 2 is cut"], 4)]
)
@pytest.mark.parametrize("role", ["loader", "engine"])
def test_start_that_cannot_succeed(role: str, failed: list[str], code: int) -> None:
    """What a child says of itself ends the start at once: its text, the exit code, no loop, no orphan."""
    with FrontProcess({role: [{"failed": failed}]}) as front:
        errors = front.errors()
        assert front.process.returncode == code
        assert failed[1] in errors
        assert errors.count(f"{role} started") == 1


def test_start_with_a_dying_child_ends() -> None:
    """A child that dies without a word is tried a few times, then serve ends with its last error line."""
    with FrontProcess({"engine": [{"die_at": "start"}]}, restart_limit=2) as front:
        errors = front.errors()
        assert front.process.returncode == 4
        assert "boom at start" in errors.splitlines()[-1]
        assert errors.count("engine started") == 3


def test_pool_below_the_minimum_says_the_minimum() -> None:
    """A pool too small for the model: exit code 2, the minimum is named, no orphan."""
    with FrontProcess(pool="4KiB") as front:
        errors = front.errors()
        assert front.process.returncode == 2
        assert "at least 8.00 KiB" in errors


def test_run_directory_that_is_not_private(tmp_path: Path) -> None:
    """A run directory open to others is refused by name, before anything is started."""
    open_to_all = tmp_path / "run"
    open_to_all.mkdir(mode=0o755)
    with FrontProcess(run_dir=open_to_all) as front:
        errors = front.errors()
        assert front.process.returncode == 2
        assert str(open_to_all) in errors and "chmod 700" in errors
        assert "started" not in errors


def test_long_run_directory(tmp_path: Path) -> None:
    """A run directory of 150 characters works over a short path that both ends derive alike."""
    long = tmp_path / ("d" * 150)
    with FrontProcess(run_dir=long).wait_ready() as front, front.client() as client:
        assert client.welcome.pid == front.process.pid
        sockets = socket_directory(long)
        assert len(os.fsencode(sockets)) < 60
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700


def test_sockets_and_directory_are_private() -> None:
    """Run directory 0700, sockets and logs 0600."""
    with FrontProcess().wait_ready() as front:
        assert stat.S_IMODE(front.run_dir.stat().st_mode) == 0o700
        for path in front.run_dir.glob("*.sock"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        for path in (front.run_dir / "logs").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_ready_means_served() -> None:
    """The client socket is bound last: while children load there is none, and a client hears that it starts."""
    with FrontProcess({"loader": [{"withhold_ready": True}]}) as front:
        until("the loader has its pool", lambda: front.seen("loader", 1))
        assert not (front.run_dir / "client.sock").exists()
        with pytest.raises(NotRunning, match=f"pid {front.process.pid}. is starting"):
            front.client()


def test_service_manager_is_told(tmp_path: Path) -> None:
    """READY only when served; the watchdog is fed while all is well, and not by an engine that does not move."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_S)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"}
        script = {"engine": [{"hang_at": "token:2"}]}
        with FrontProcess(script, variables=variables).wait_ready() as front, front.client() as client:
            assert manager_hears(manager, "READY=1", before="WATCHDOG=1")
            assert manager_hears(manager, "WATCHDOG=1")
            answered = client.generate("x", max_tokens=5)
            while not isinstance(next(answered), Tokens):
                pass
            # Beats still come, each with the same progress: after what is under way, silence.
            manager.settimeout(1.5)
            with pytest.raises(TimeoutError):
                for _ in range(20):
                    manager.recv(1000)
            manager.settimeout(DEADLINE_S)
            front.process.send_signal(signal.SIGTERM)
            assert manager_hears(manager, "STOPPING=1")


def manager_hears(manager: socket.socket, word: str, before: str = "no such word") -> bool:
    while True:
        said = manager.recv(1000).decode()
        if word in said:
            return True
        assert before not in said


def test_nothing_forks() -> None:
    """No fork after MLX or ZeroMQ: the sources know no os.fork, and a pool of processes only in a spawning context."""
    root = Path(__file__).resolve().parents[2]
    sources = [p for part in ("daemon", "client", "loader", "protocol") for p in (root / part).rglob("*.py")]
    assert len(sources) > 50
    forks = re.compile(
        r"os\.fork|forkpty|multiprocessing\.(Pool|Process)|get_context\((?!\"spawn\"\))"
        r"|ProcessPoolExecutor\((?!.*get_context\(\"spawn\"\))"
    )
    for wrong in ("os.fork()", "ProcessPoolExecutor(2)", 'get_context("fork")', "multiprocessing.Pool(2)"):
        assert forks.search(wrong)
    assert [p.name for p in sources if forks.search(p.read_text(encoding="utf-8"))] == []


def test_minimal_environment() -> None:
    """A service manager's bare environment is enough for the command to start and to explain itself."""
    result = subprocess.run(
        [sys.executable, "-m", "mtp_daemon.cli", "serve", "/nonexistent"],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 2
    assert "/nonexistent" in result.stderr and "Traceback" not in result.stderr
