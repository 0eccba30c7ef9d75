"""A real engine process, with this test for its front and a loader in a thread of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import zmq

from mtp_loader.store.open import open_source
from mtp_protocol import engine_messages as e
from mtp_protocol.geometry import PoolLayout
from mtp_protocol.lifeline import send_region
from mtp_protocol.sampling import Sampling
from support.inline_loader import InlineLoader
from support.pool_shapes import layout_for, new_region, share_of

M = TypeVar("M")
PATIENCE_S = 60.0
DEFAULTS: dict[str, Any] = {"depth_controller": "constant", "depth": 2}


class EngineProcess:
    """`start` … `read` …: every wait has a deadline and ends when the engine dies."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        *,
        share: float = 1.0,
        epoch: int = 1,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.directory, self.epoch = directory, epoch
        self.context: zmq.Context[Any] = zmq.Context()
        self.front = self.context.socket(zmq.ROUTER)
        self.front.linger = 0
        self.front.bind(f"ipc://{directory}/children.sock")
        source = open_source(model, widen=True)
        self.geometry = source.geometry
        self.layout: PoolLayout = layout_for(self.geometry, share_of(self.geometry, share))
        self.region_fd = new_region(self.layout)
        self.loader = InlineLoader(source, self.layout, self.region_fd, directory, self.context)
        self.lifeline, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.log = directory / "engine.log"
        self.seen: list[e.FromEngine] = []
        self._requests = 0
        given = {**DEFAULTS, **(settings or {})}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "mtp_daemon.engine"),
                    *("--lifeline", str(theirs.fileno()), "--front", f"ipc://{directory}/children.sock"),
                    *("--epoch", str(epoch), "--socket-dir", str(directory), "--model", str(model)),
                    *("--settings", json.dumps(given)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
        theirs.close()

    def send(self, message: e.ToEngine) -> None:
        self.send_bytes(e.to_engine.encode(message))

    def send_bytes(self, body: bytes) -> None:
        self.front.send_multipart([f"engine-{self.epoch}".encode(), body])

    def give_pool(self) -> None:
        send_region(self.lifeline, self.layout.generation, self.layout.nbytes, self.region_fd)
        self.send(e.Pool(self.geometry, self.layout))

    def ready(self) -> e.Ready:
        """The whole start."""
        self.read(e.Beat)  # connected: before that a ROUTER drops what is sent
        self.give_pool()
        self.send(e.LoaderUp(self.loader.epoch, self.loader.address))
        return self.read(e.Ready)

    def start(self, prompt: list[int] | str, max_tokens: int, **more: Any) -> bytes:
        self._requests += 1
        request = self._requests.to_bytes(16, "big")
        text = prompt if isinstance(prompt, str) else None
        ids = None if isinstance(prompt, str) else tuple(prompt)
        fields = {"raw": True, "system": None, "stop": (), "sampling": Sampling(), **more}
        self.send(e.Start(request=request, prompt=text, prompt_ids=ids, max_tokens=max_tokens, **fields))
        return request

    def next(self, patience_s: float = PATIENCE_S) -> e.FromEngine:
        until = time.monotonic() + patience_s
        while not self.front.poll(100):
            if self.process.poll() is not None and not self.front.poll(200):
                raise AssertionError(f"the engine ended with {self.process.returncode}:\n{self.log.read_text()}")
            if time.monotonic() > until:
                raise AssertionError(f"nothing within {patience_s} s:\n{self.log.read_text()}")
        message = e.from_engine.decode(self.front.recv_multipart()[1])
        self.seen.append(message)
        return message

    def read(self, kind: type[M], patience_s: float = PATIENCE_S, where: Callable[[M], bool] = lambda m: True) -> M:
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            message = self.next(patience_s)
            if isinstance(message, kind) and where(message):
                return message
            if isinstance(message, e.Failed) and message.request is None:
                raise AssertionError(f"the engine says {message}")
        raise AssertionError(f"no {kind.__name__} within {patience_s} s")

    def answer(self, request: bytes) -> tuple[list[e.Tokens], e.Finished | e.Failed]:
        """Every Tokens of a request, and its terminal message; after that the engine says nothing more of it."""
        tokens: list[e.Tokens] = []
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            match self.next():
                case e.Tokens() as message if message.request == request:
                    tokens.append(message)
                case (e.Finished() | e.Failed()) as message if message.request == request:
                    return tokens, message
                case e.Failed(None) as message:
                    raise AssertionError(f"the engine says {message}")
        raise AssertionError(f"no end of the answer within {PATIENCE_S} s:\n{self.log.read_text()}")

    def ask(self, prompt: list[int] | str, max_tokens: int, **more: Any) -> tuple[list[int], str, e.Finished]:
        """`(ids, text, finished)` of one request."""
        tokens, last = self.answer(self.start(prompt, max_tokens, **more))
        assert isinstance(last, e.Finished), last
        at = len(more.get("delivered", ()))
        for message in tokens:
            assert message.seq == at, "the runs follow each other without a gap"
            at += len(message.ids)
        return [i for m in tokens for i in m.ids], "".join(m.text for m in tokens), last

    def exit_code(self, patience_s: float = PATIENCE_S) -> int:
        return self.process.wait(patience_s)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.loader.kill()
        self.lifeline.close()
        self.context.destroy(0)
        os.close(self.region_fd)


def _environment() -> dict[str, str]:
    """The engine may not look for a home, a cache or the network."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": "/nonexistent", "PYTHONWARNINGS": "error::ResourceWarning"}


@contextmanager
def engine_process(model: Path, **options: Any) -> Iterator[EngineProcess]:
    with tempfile.TemporaryDirectory(prefix="mtpd-") as directory:
        engine = EngineProcess(model, Path(directory), **options)
        try:
            yield engine
        finally:
            engine.close()
