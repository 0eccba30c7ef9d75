"""A real loader process with a scripted front and a scripted engine: real sockets, a real region, real files."""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import zmq

from mtp_loader.pool.layout import make_layout
from mtp_loader.store import Source, open_source
from mtp_protocol.expert_messages import (
    Filled,
    FillFailed,
    Hello,
    Need,
    Recall,
    Released,
    ToEngine,
    Welcome,
    pack_epochs,
    to_engine,
    unpack_epochs,
)
from mtp_protocol.expert_messages import ToLoader as FromEngine
from mtp_protocol.expert_messages import to_loader as engine_codec
from mtp_protocol.geometry import PoolLayout
from mtp_protocol.lifeline import create_region, send_region
from mtp_protocol.loader_messages import Beat, EngineDead, EngineUp, FromLoader, Geometry, Pool, Ready, from_loader
from mtp_protocol.loader_messages import ToLoader as FromFront
from mtp_protocol.loader_messages import to_loader as front_codec

DEADLINE_S = 30.0
M = TypeVar("M")


class ScriptedFront:
    """The front's side: one child at a time, told what the test wants."""

    def __init__(self, directory: Path, model: Path, settings: dict[str, Any]) -> None:
        self.directory, self.model, self.settings = directory, model, settings
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.address = f"ipc://{directory}/children.sock"
        self.router.bind(self.address)
        self.source: Source = open_source(model, widen=bool(settings.get("widen", False)))
        self.layout: PoolLayout | None = None
        self.fd = -1
        self.epoch = 0
        self.errors = directory / "stderr.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.engines: list[zmq.Socket[bytes]] = []

    def spawn(self) -> None:
        """Starts the next loader; its error output goes on in one file."""
        self.epoch += 1
        self.lifeline, theirs = socket.socketpair()
        command = [sys.executable, "-m", "mtp_loader.service", "--front", self.address]
        command += ["--lifeline", str(theirs.fileno()), "--epoch", str(self.epoch), "--socket-dir", str(self.directory)]
        command += ["--model", str(self.model), "--settings", json.dumps(self.settings)]
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=errors)
        theirs.close()

    def start(self, slots: int) -> str:
        """Spawns a loader and gives it a pool of `slots` slots in each bank; returns its experts' address."""
        self.spawn()
        geometry = self.await_message(Geometry).geometry
        if self.layout is None:
            self.layout = make_layout(geometry, slots * sum(b.slot_bytes for b in geometry.banks), 1)
            self.fd = create_region(self.layout.nbytes)
            self.pool = mmap.mmap(self.fd, self.layout.nbytes, prot=mmap.PROT_READ)
        self.give_pool()
        return self.await_message(Ready).address

    def give_pool(self) -> None:
        assert self.layout is not None
        send_region(self.lifeline, self.layout.generation, self.layout.nbytes, self.fd)
        self.send(Pool(self.layout))

    def replace_pool(self, slots: int) -> None:
        """A region of the next generation for the running loader."""
        assert self.layout is not None
        self.pool.close()
        os.close(self.fd)
        banks = self.source.geometry.banks
        nbytes = slots * sum(b.slot_bytes for b in banks)
        self.layout = make_layout(self.source.geometry, nbytes, self.layout.generation + 1)
        self.fd = create_region(self.layout.nbytes)
        self.pool = mmap.mmap(self.fd, self.layout.nbytes, prot=mmap.PROT_READ)
        self.give_pool()

    def send(self, message: FromFront) -> None:
        self.router.send_multipart([f"loader-{self.epoch}".encode(), front_codec.encode(message)])

    def send_raw(self, body: bytes) -> None:
        self.router.send_multipart([f"loader-{self.epoch}".encode(), body])

    def messages(self, deadline_s: float = DEADLINE_S) -> Iterator[FromLoader]:
        """What the loader says, until the deadline; fails at once when it dies."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if self.router.poll(100):
                yield from_loader.decode(self.router.recv_multipart()[1])
            elif self.process is not None and self.process.poll() is not None and not self.router.poll(0):
                raise AssertionError(f"the loader left with {self.process.returncode}: {self.errors.read_text()}")
        raise AssertionError(f"nothing came: {self.errors.read_text()}")

    def await_message(self, kind: type[M], test: Callable[[M], bool] = lambda message: True) -> M:
        return next(m for m in self.messages() if isinstance(m, kind) and test(m))

    def await_fact(self, name: str, test: Callable[[Any], bool]) -> dict[str, Any]:
        """The facts of the first beat in which `name` is as wanted."""
        return dict(self.await_message(Beat, lambda b: name in b.facts and test(b.facts[name])).facts)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        self.lifeline.close()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
        if hasattr(self, "lifeline"):
            self.lifeline.close()
        if self.fd >= 0:
            self.pool.close()
            os.close(self.fd)
        for engine in self.engines:
            engine.close()
        self.router.close()
        self.context.term()

    # -- what is in the pool ---------------------------------------------------------------------------------------

    def slot_is(self, layer: int, expert: int, slot: int) -> bool:
        """Whether the slot's rows are the expert's source bytes, read here with plain reads."""
        assert self.layout is not None
        bank = next(b for b in self.source.geometry.banks if layer in b.layers)
        for extent in self.source.extents(layer, expert):
            with open(self.source.files[extent.file], "rb") as file:
                file.seek(extent.offset)
                for p in extent.planes:
                    plane = bank.planes[p]
                    start = self.layout.banks[bank.bank].plane_offsets[p] + slot * plane.row_bytes
                    if file.read(plane.source_bytes) != self.pool[start : start + plane.row_bytes]:
                        return False
        return True


class ScriptedEngine:
    """The engine's side of the experts' socket. It answers no recall unless told to."""

    def __init__(self, front: ScriptedFront, address: str, epoch: int = 1) -> None:
        self.front, self.epoch, self.loader_epoch = front, epoch, front.epoch
        self.socket = front.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)
        front.engines.append(self.socket)
        self.ticket = 0
        self.where: dict[tuple[int, int], int] = {}
        self.recalled: list[tuple[int, int]] = []
        self.stale = 0

    def greet(self) -> Welcome:
        self.front.send(EngineUp(self.epoch, 1))
        assert self.front.layout is not None
        self.send(Hello(self.front.source.geometry.fingerprint, self.front.layout.generation))
        welcome = self.await_message(Welcome)
        self.where = {(r.layer, r.expert): r.slot for r in welcome.resident}
        return welcome

    def send(self, message: FromEngine, epochs: tuple[int, int] | None = None) -> None:
        frame = pack_epochs(*(epochs or (self.loader_epoch, self.epoch)))
        self.socket.send_multipart([frame, engine_codec.encode(message)])

    def receive(self, deadline_s: float = DEADLINE_S) -> ToEngine:
        """The next message; Filled and Recall are taken note of."""
        if not self.socket.poll(int(deadline_s * 1000)):
            raise AssertionError(f"the loader does not answer: {self.front.errors.read_text()}")
        frame, body = self.socket.recv_multipart()
        assert unpack_epochs(frame) == (self.loader_epoch, self.epoch)
        message = to_engine.decode(body)
        match message:
            case Filled(experts=experts):
                self.where |= {(r.layer, r.expert): r.slot for r in experts}
            case Recall(bank, slots):
                self.recalled += [(bank, slot) for slot in slots]
        return message

    def await_message(self, kind: type[M]) -> M:
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message

    def need(self, layer: int, experts: tuple[int, ...], held: tuple[int, ...] = (), **more: Any) -> int:
        self.ticket += 1
        self.send(Need(self.ticket, layer, experts, held, **more))
        return self.ticket

    def fetch(self, layer: int, experts: tuple[int, ...], held: tuple[int, ...] = (), **more: Any) -> FillFailed | None:
        """A whole wave: needs, answers recalls while it waits, and has it all at the end, or the failure."""
        ticket = self.need(layer, experts, held, **more)
        while True:
            message = self.receive()
            self.answer_recalls(but=held)
            if isinstance(message, FillFailed) and message.ticket == ticket:
                return message
            if isinstance(message, Filled) and message.ticket == ticket and message.remaining == 0:
                return None

    def answer_recalls(self, but: tuple[int, ...] = ()) -> None:
        for bank, slot in [pair for pair in self.recalled if pair[1] not in but]:
            self.recalled.remove((bank, slot))
            self.where = {k: s for k, s in self.where.items() if s != slot}
            self.send(Released(bank, (slot,)))

    def die(self) -> None:
        """Killed and reaped, as the front tells it."""
        self.socket.close()
        self.front.send(EngineDead(self.epoch))


@contextmanager
def scripted_front(directory: Path, model: Path, **settings: Any) -> Iterator[ScriptedFront]:
    """Nothing is read ahead unless `settings` say so: what is depends on how fast the disk was."""
    front = ScriptedFront(directory, model, {"prefetch": False, "warm_start": False} | settings)
    try:
        yield front
    finally:
        front.close()
