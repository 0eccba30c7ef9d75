"""A service for a measurement: started with chosen settings, asked through the client, stopped. Or one that runs."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_client.client import Client
from mtp_client.errors import ClientError
from mtp_daemon.errors import EnvironmentFailure, UserError
from mtp_protocol.client_messages import Finished, TokenLogprobs, Tokens
from mtp_protocol.sampling import Sampling

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
BOOKS_TIMEOUT_S = 5.0  # the loader tells of itself each second
CHILDREN = ("engine", "loader")
_GREEDY = Sampling()


@dataclass(frozen=True)
class Served:
    """One answer of the service: its tokens and the numbers that came with it."""

    ids: list[int]
    stats: dict[str, Any]
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def hit_rate(self) -> float:
        return hit_rate(self.stats)


def hit_rate(stats: Mapping[str, Any]) -> float:
    """Of an answer's experts, the share that was resident when the router named them; 1 where none was asked for."""
    asked = stats["hits"] + stats["misses"]
    return float(stats["hits"] / asked) if asked else 1.0


def disk_flags(gbps: float | None) -> list[str]:
    """Flags of `mtpd serve` for a disk slowed to `gbps` GB/s; None: as it is."""
    return [] if gbps is None else ["--disk-gbps", str(gbps)]


class Service:
    """A running service in `run_directory`."""

    def __init__(self, client: Client, run_directory: Path) -> None:
        self.client = client
        self.run_directory = run_directory

    def answer(
        self, ids: Sequence[int], n: int, *, speculation: str = "off", depth: int = 0, sampling: Sampling = _GREEDY
    ) -> Served:
        """Decode up to `n` tokens after the prompt `ids`; raises EnvironmentFailure where the request fails."""
        got: list[int] = []
        told: list[TokenLogprobs] = []
        events = self.client.generate(
            prompt_ids=tuple(ids), max_tokens=n, raw=True, sampling=sampling, speculation=speculation, depth=depth
        )
        try:
            for event in events:
                if isinstance(event, Tokens):
                    got += event.ids
                    told += event.logprobs
                elif isinstance(event, Finished):
                    return Served(got, dict(event.stats), tuple(told))
        except ClientError as error:
            raise EnvironmentFailure(f"the service could not answer: {error}") from error
        raise EnvironmentFailure("the answer ended without a word")

    def prompt(self, tokens: int) -> list[int]:
        """`tokens` ids that the model knows: 1, 2, 3, … and round again."""
        vocabulary = int(self.client.status()["engine_facts"]["vocabulary"])
        return [1 + i % (vocabulary - 1) for i in range(tokens)]

    def pids(self) -> dict[str, int]:
        """Of front, engine and loader."""
        children = self.client.status()["children"]
        return {"front": self.client.welcome.pid, **{role: children[role]["pid"] for role in CHILDREN}}

    def loader_counts(self, since: Mapping[str, Any] | None = None, served: Served | None = None) -> dict[str, Any]:
        """What the loader has counted since its start, once it has heard of all that `served` asked for after `since`.

        So the two sides' books are compared each time; raises EnvironmentFailure where they do not agree in time.
        """
        asked = served.stats["hits"] + served.stats["misses"] if served is not None and since is not None else 0
        due = _requests(since) + asked if since is not None else 0
        deadline = time.monotonic() + BOOKS_TIMEOUT_S
        while True:
            counts = dict(self.client.status()["experts"])
            if _requests(counts) >= due and counts:
                return counts
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"the loader heard of {_requests(counts)} requests, the engine made {due}")
            time.sleep(0.05)


def _requests(counts: Mapping[str, Any] | None) -> int:
    return 0 if counts is None else int(counts.get("hits", 0) + counts.get("misses", 0))


@contextmanager
def serving(model: Path | str, *flags: str, shown: bool = False) -> Iterator[Service]:
    """Serve `model` with `flags` (as for `mtpd serve`) until the block ends; what it learns is not kept.

    `shown`: what it says of itself goes to standard output. Raises EnvironmentFailure, with its last words, where it
    does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="mtpd-bench-") as name:
        run, log = Path(name) / "run", Path(name) / "log"
        command = [sys.executable, "-m", "mtp_daemon.cli", "serve", str(model), "--run-dir", str(run)]
        command += ["--state-dir", "off", *flags]  # every measurement begins with nothing learned
        with log.open("wb") as sink:
            daemon = subprocess.Popen(command, stdout=None if shown else sink, stderr=sink)
        try:
            with _connect(daemon, run, log) as client:
                yield Service(client, run)
        finally:
            _end(daemon)


@contextmanager
def running(run_directory: Path) -> Iterator[Service]:
    """The service that runs there already; it is left running. Raises UserError where there is none."""
    try:
        client = Client(run_directory, name="mtp-bench")
    except ClientError as error:
        raise UserError(f"{error}; start one with `mtpd serve MODEL`, or leave --run-dir out") from error
    with client:
        yield Service(client, run_directory)


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    """Asked first, killed where that does not help."""
    daemon.terminate()
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(STOP_TIMEOUT_S)


def _connect(daemon: "subprocess.Popen[bytes]", run: Path, log: Path) -> Client:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        if daemon.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace").strip()[-2000:]
            raise EnvironmentFailure(f"mtpd serve did not become ready:\n{tail}")
        try:
            return Client(run, name="mtp-bench")
        except ClientError:
            time.sleep(0.1)
