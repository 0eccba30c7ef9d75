"""A service of one's own for a measurement: started with chosen settings, asked through the client, stopped."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_client.client import Client
from mtp_client.errors import ClientError
from mtp_daemon.errors import EnvironmentFailure
from mtp_protocol.client_messages import Finished, Tokens

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Served:
    """One answer of the service: its tokens and the numbers that came with it."""

    ids: list[int]
    stats: dict[str, Any]


class Service:
    """A running service; `log` holds what it printed."""

    def __init__(self, client: Client, pid: int, log: Path) -> None:
        self.client = client
        self.pid = pid
        self.log = log

    def answer(self, ids: Sequence[int], n: int, *, speculation: str = "off", depth: int = 0) -> Served:
        """Decode `n` tokens greedily after the prompt `ids`; raises EnvironmentFailure where the request fails."""
        got: list[int] = []
        events = self.client.generate(
            prompt_ids=tuple(ids), max_tokens=n, raw=True, speculation=speculation, depth=depth
        )
        try:
            for event in events:
                if isinstance(event, Tokens):
                    got += event.ids
                elif isinstance(event, Finished):
                    return Served(got, dict(event.stats))
        except ClientError as error:
            raise EnvironmentFailure(f"the service could not answer: {error}") from error
        raise EnvironmentFailure("the answer ended without a word")


@contextmanager
def serving(model: Path, *flags: str) -> Iterator[Service]:
    """Serve `model` with `flags` (as for `mtpd serve`) until the block ends."""
    with tempfile.TemporaryDirectory(prefix="mtpd-bench-") as name:
        run = Path(name)
        command = [sys.executable, "-m", "mtp_daemon.cli", "serve", str(model), "--run-dir", str(run / "run")]
        command += ["--state-dir", "off", *flags]  # every measurement begins with nothing learned
        with (run / "log").open("wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with _connect(daemon, run) as client:
                yield Service(client, daemon.pid, run / "log")
        finally:
            end(daemon)


def end(daemon: "subprocess.Popen[bytes]") -> None:
    """Stop a service that we started: asked first, killed where that does not help."""
    daemon.terminate()
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(STOP_TIMEOUT_S)


def _connect(daemon: "subprocess.Popen[bytes]", run: Path) -> Client:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        if daemon.poll() is not None or time.monotonic() > deadline:
            tail = (run / "log").read_text(errors="replace").strip()[-2000:]
            raise EnvironmentFailure(f"mtpd serve did not become ready:\n{tail}")
        try:
            return Client(run / "run", name="mtp-bench")
        except ClientError:
            time.sleep(0.1)
