"""Moments of the service's life, reached by watching, and what is seen of it from outside; for the kill matrix."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mtp_client.client import Client
from mtp_client.connection import daemon_pid
from mtp_client.errors import ClientError, ConnectionLost, NotRunning
from mtp_protocol.client_messages import Finished, Progress, Tokens
from support.front_process import FrontProcess
from support.served_model import ServedModel
from support.waiting import until

PROMPT = tuple(3 + (7 * i) % 300 for i in range(50))
N = 24
ROLES = ("engine", "loader", "front")
ANSWERING = ("prefill", "first token", "mid-round", "while filling", "while recalling")
MOMENTS = ("start-up", *ANSWERING, "between requests", "at shutdown")
PROGRAMS = {"engine": "mtp_daemon.engine", "loader": "mtp_loader.service"}
HANG_S = 60.0  # of a loaded machine; the processes' own limits are what is tested


class Moment:
    """Called with each event of an answer; kills once its moment has come."""

    def __init__(self, front: ServedModel, name: str, role: str) -> None:
        self.front, self.name, self.role = front, name, role
        self.killed_at = 0.0
        self.wait_s = 0.0  # the longest that the client waited for a token after it
        self._since = 0.0
        self.pids = {"front": front.process.pid, **{r: front.child_pid(r) for r in PROGRAMS}}

    def __call__(self, event: object, ids: list[int]) -> None:
        if self.killed_at:
            self._waited(event)
            return
        if not self._come(event, ids):
            return
        match self.name:
            case "while filling":
                self._hold("loader", self._engine_waits)
            case "while recalling":
                self._hold("engine", self._recall_is_open)
            case _:
                self._kill()

    def _waited(self, event: object) -> None:
        if isinstance(event, Tokens | Finished):
            now = time.monotonic()
            self.wait_s, self._since = max(self.wait_s, now - self._since), now

    def _come(self, event: object, ids: list[int]) -> bool:
        if self.name == "prefill":
            return isinstance(event, Progress) and event.phase == "prefill" and event.done < event.total
        return isinstance(event, Tokens) and len(ids) >= {"first token": 1, "mid-round": 10}.get(self.name, 4)

    def _hold(self, stopped: str, come: Callable[[], None]) -> None:
        """Stop one process, so that what it owes the other stays owed; kill; let it go on if it lives."""
        process = psutil.Process(self.pids[stopped])
        process.suspend()
        try:
            come()
            self._kill()
        finally:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _engine_waits(self) -> None:
        """The engine's clock stands still in the middle of an answer: it waits for the experts of a Need."""
        engine = psutil.Process(self.pids["engine"])
        spent: list[float] = []

        def still() -> bool:
            times = engine.cpu_times()
            spent.append(times.user + times.system)
            time.sleep(0.05)
            return len(spent) > 8 and spent[-1] == spent[-8]

        until("the engine waits", still)
        assert self.front.status()["queue"]["running"] is not None

    def _recall_is_open(self) -> None:
        """A smaller pool wants slots back, and the engine, stopped, cannot give them."""
        threading.Thread(target=self._resize, daemon=True).start()
        until("recalls", lambda: self.front.status()["experts"].get("recalled", 0) > 0)

    def _resize(self) -> None:
        """Its answer is of no interest here: whoever was to give it may be dead."""
        with suppress(ClientError), Client(self.front.run_dir) as client:
            client.resize("25%", wait_s=HANG_S)

    def _kill(self) -> None:
        self.killed_at = self._since = time.monotonic()
        os.kill(self.pids[self.role], signal.SIGKILL)


def answer(client: Client, at: Moment | None = None) -> list[int]:
    """The ids, each once and in order; raises what the client raises, and not late."""
    ids: list[int] = []
    try:
        for event in client.generate(prompt_ids=PROMPT, max_tokens=N, depth=2):
            if isinstance(event, Tokens):
                assert event.seq == len(ids)
                ids += event.ids
            if isinstance(event, Finished):
                assert event.usage.completion_tokens == N
            if at is not None:
                at(event, ids)
    except ConnectionLost:
        assert at is not None and at.role == "front"
        at.wait_s = time.monotonic() - at.killed_at
        raise
    assert at is None or at.killed_at, f"{at.name} never came"
    return ids


def all_ready(front: FrontProcess) -> bool:
    return all(child["state"] == "ready" for child in front.status()["children"].values())


def books_add_up(front: FrontProcess) -> bool:
    """The loader's own account, once the engine has reported its last forward: every request a hit or a miss."""
    experts = front.status()["experts"]
    return 0 < experts.get("requests", 0) == experts["hits"] + experts["misses"] and all_ready(front)


def restarts(front: FrontProcess, role: str) -> int:
    return int(front.status()["children"][role]["restarts"])


def find_children(front: FrontProcess) -> dict[str, int] | None:
    """Both programs by role, None while one of them is not there yet."""
    assert front.process.poll() is None, front.errors()
    found = {}
    for process in front.descendants():
        with suppress(psutil.NoSuchProcess):
            found.update({role: process.pid for role, program in PROGRAMS.items() if program in process.cmdline()})
    return found if len(found) == len(PROGRAMS) else None


def kill_front(front: FrontProcess) -> None:
    children = front.descendants()
    front.process.kill()
    front.process.wait()
    assert psutil.wait_procs(children, timeout=5)[1] == [], "orphans"


def nothing_left_and_next_start_works(front: ServedModel, right: list[int]) -> float:
    """No process, no shared memory, no lock; stale sockets stop nobody, and after a clean stop there are none.

    How many seconds the next start took.
    """
    front.process.wait()
    until("no orphan", lambda: not users_of(front.run_dir), 5.0)
    assert daemon_pid(front.run_dir) is None
    with pytest.raises(NotRunning):
        front.client()
    assert not [name for name in os.listdir("/dev/shm") if "mtpd" in name] if os.path.isdir("/dev/shm") else True
    front.process.stdout.close()  # type: ignore[union-attr]
    front.process = front.spawn()
    begun = time.monotonic()
    front.wait_ready()
    start_s = time.monotonic() - begun
    with front.client() as client:
        assert answer(client) == right
    assert front.stop() == 0
    assert list(front.run_dir.glob("*.sock")) == [] and users_of(front.run_dir) == []
    return start_s


def users_of(run_dir: Path) -> list[int]:
    """Processes that were started for this run directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        named = str(run_dir) in " ".join(process.info["cmdline"] or ())
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
