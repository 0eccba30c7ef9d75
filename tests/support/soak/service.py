"""The service under the soak: `mtpd serve` as a process, its children by name, and what it leaves behind."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from mtp_client.client import Client
from mtp_client.errors import ClientError

READY_S = 180.0
ROLES = ("engine", "loader")


class Wrong(Exception):
    """Something that must hold does not: the soak ends with it."""


class Service:
    """One front after another in one run directory. Its log is kept in `home`."""

    def __init__(self, model: Path, home: Path, flags: Sequence[str]) -> None:
        self.run_dir = home / "run"
        self.log = home / "front.log"
        self._command = [sys.executable, "-m", "mtp_daemon.cli", "serve", str(model)]
        self._command += ["--run-dir", str(self.run_dir), "--state-dir", str(home / "state"), *flags]
        # How often it was killed on purpose: a client that loses its connection asks whether that was the reason.
        self.lives = 0
        self._shm = _shared_memory()
        self.start()

    def start(self) -> None:
        """Raises Wrong when it does not become ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        said, deadline = b"", time.monotonic() + READY_S
        while b"\nready" not in said:
            readable = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(self.process.stdout.fileno(), 4096) if readable else b""
            if not data:
                raise Wrong(f"mtpd serve was not ready: {self.last_lines()}")
            said += data

    def client(self) -> Client:
        return Client(self.run_dir, name="soak")

    def status(self) -> dict[str, Any]:
        with self.client() as client:
            return dict(client.status())

    def pids(self) -> dict[str, int]:
        """Of every process that lives now, by role."""
        children = self.status()["children"]
        found = {role: children[role]["pid"] for role in ROLES if children[role]["pid"]}
        return {"front": self.process.pid, **found}

    def kill_front(self) -> None:
        """Its children must follow within five seconds; then a new one must be able to start."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.lives += 1
        self.process.kill()
        self.process.wait()
        self._close_output()
        _gone, alive = psutil.wait_procs(children, timeout=10)
        if alive:
            raise Wrong(f"the front was killed and {alive} live on")
        self._check_shared_memory()
        self.start()

    def stop(self) -> None:
        """SIGTERM, and nothing of it may be left."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Wrong("the front did not stop within 60 s of SIGTERM") from None
        self._close_output()
        if code != 0:
            raise Wrong(f"the front ended with exit code {code}: {self.last_lines()}")
        left = [str(child) for child in children if child.is_running()]
        left += [str(path) for path in self.run_dir.glob("*.sock")]
        if left:
            raise Wrong(f"left behind: {left}")
        self._check_shared_memory()

    def end(self) -> None:
        """Whatever happened: nothing of it runs any more when this returns."""
        if self.process.poll() is None:
            with_children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            for child in with_children:
                if child.is_running():
                    child.kill()
            psutil.wait_procs(with_children, timeout=10)
        self._close_output()

    def last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def _close_output(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _check_shared_memory(self) -> None:
        if new := _shared_memory() - self._shm:
            raise Wrong(f"shared memory is left behind: {sorted(new)}")


def _shared_memory() -> set[str]:
    """Names of shared memory segments that could be ours; other systems list none."""
    return {p.name for p in Path("/dev/shm").glob("*") if "mtpd" in p.name or p.name.startswith("psm_")}


def until(what: str, condition: Callable[[], Any], deadline_s: float) -> Any:
    """The condition's first true value; raises Wrong, saying `what` was waited for, when there is none in time."""
    deadline, error = time.monotonic() + deadline_s, ""
    while True:
        try:
            if value := condition():
                return value
        except ClientError as failure:
            error = f": {failure}"
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: not within {deadline_s:g} s{error}")
        time.sleep(0.02)
