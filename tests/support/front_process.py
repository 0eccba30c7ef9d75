"""Starts the front as a process, watches it, and makes sure that nothing of it outlives a test."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psutil

from mtp_client.client import Client

TESTS = Path(__file__).resolve().parents[1]
DEADLINE_S = 30.0


class FrontProcess:
    """A front with children as `script` says (see fake_children). `settings` go to the front,
    `variables` into its environment.
    """

    def __init__(
        self,
        script: dict[str, Any] | None = None,
        run_dir: Path | None = None,
        variables: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.variables = variables or {}
        self.home = Path(tempfile.mkdtemp(prefix="mtpd-t-"))
        self.run_dir = run_dir if run_dir is not None else self.home / "run"
        self.logs = self.home / "seen"
        self.logs.mkdir()
        (self.home / "script.json").write_text(json.dumps(script or {}))
        self.settings = {"pool": "100%", **settings}
        self.process = self.spawn()

    def spawn(self) -> "subprocess.Popen[str]":
        """Another front on the same run directory."""
        return subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment(),
            start_new_session=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")])),
            "FAKE_SCRIPT": str(self.home / "script.json"),
            "FAKE_LOG": str(self.logs),
            **self.variables,
        }

    def command(self) -> list[str]:
        model = str(self.home / "model")
        return [sys.executable, "-m", "support.front_main", str(self.run_dir), model, json.dumps(self.settings)]

    def wait_ready(self, process: "subprocess.Popen[str] | None" = None) -> Self:
        """Until the front says that it is ready; fails the test with what it said when it ends or takes too long."""
        process = process if process is not None else self.process
        assert process.stdout is not None
        said, deadline = b"", time.monotonic() + DEADLINE_S
        while b"\nready" not in said:
            left = deadline - time.monotonic()
            readable = left > 0 and select.select([process.stdout], [], [], left)[0]
            data = os.read(process.stdout.fileno(), 4096) if readable else b""
            if not data:
                process.kill()
                errors = self.errors(process)
                self.__exit__()
                raise AssertionError(f"the front was not ready: {errors}")
            said += data
        return self

    def errors(self, process: "subprocess.Popen[str] | None" = None) -> str:
        """What an ended front said on its standard error."""
        process = process if process is not None else self.process
        return process.communicate(timeout=DEADLINE_S)[1]

    def client(self) -> Client:
        return Client(self.run_dir)

    def status(self) -> dict[str, Any]:
        with self.client() as client:
            return dict(client.status())

    def child_pid(self, role: str) -> int:
        return int(self.status()["children"][role]["pid"])

    def seen(self, role: str, epoch: int) -> list[str]:
        """The names of the messages that child received, in order."""
        path = self.logs / f"{role}-{epoch}.log"
        return [line.split("(")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        children = self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        # Fakes leave at the lifeline's end, stopped ones cannot.
        for child in children:
            try:
                child.resume()
            except psutil.NoSuchProcess:
                continue
        _gone, alive = psutil.wait_procs(children, timeout=5)
        for child in alive:
            child.kill()
        shutil.rmtree(self.home, ignore_errors=True)
