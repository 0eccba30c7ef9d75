"""The loader's two sockets, both owned by its main thread."""

import logging
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from mtp_loader.pool.effects import EngineMessage
from mtp_protocol.errors import ProtocolError
from mtp_protocol.expert_messages import (
    Hinting,
    Limit,
    NotWelcome,
    Welcome,
    pack_epochs,
    to_engine,
    to_loader,
    unpack_epochs,
)
from mtp_protocol.expert_messages import ToLoader as FromEngine
from mtp_protocol.loader_messages import FromLoader, ToLoader, from_loader
from mtp_protocol.loader_messages import to_loader as from_front

log = logging.getLogger(__name__)


class FrontSocket:
    """A DEALER to the front; a message that is none is counted, logged and dropped: it is a bug of ours, and
    answers go on without it.
    """

    def __init__(self, context: "zmq.Context[Any]", address: str, epoch: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 500  # the last word, why the loader cannot go on, should still arrive
        self.socket.sndhwm = self.socket.rcvhwm = 0
        self.socket.identity = f"loader-{epoch}".encode()
        self.socket.connect(address)
        self.bad_messages = 0

    def send(self, message: FromLoader) -> None:
        self.socket.send(from_loader.encode(message), zmq.NOBLOCK)

    def receive(self) -> Iterator[ToLoader]:
        """What is there now."""
        while True:
            try:
                body = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = from_front.decode(body)
            except ProtocolError as error:
                self.bad_messages += 1
                log.warning("dropped %d bytes from the front: %s", len(body), error)
            else:
                yield message

    def close(self) -> None:
        self.socket.close()


class ExpertSocket:
    """A ROUTER that one engine at a time talks to; messages of another pair of epochs are dropped and counted."""

    def __init__(self, context: "zmq.Context[Any]", directory: Path, epoch: int) -> None:
        path = directory / f"loader-{epoch}.sock"
        path.unlink(missing_ok=True)  # a bind would steal it silently; the front gives each epoch once
        self.address = f"ipc://{path}"
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.router_mandatory = True  # a send to a gone engine is an error and not a silence
        self.socket.sndhwm = self.socket.rcvhwm = 0  # an engine waits for what it asks: nothing piles up
        self.socket.bind(self.address)
        os.chmod(path, 0o600)
        self.stale_messages = self.bad_messages = self.unsent_messages = 0
        self._loader_epoch = epoch
        self._peer: bytes | None = None
        self._epochs = b""
        self._early: deque[list[bytes]] = deque(maxlen=64)

    def receive(self, engine_epoch: int | None, dead: int) -> FromEngine | None:
        """The next message of this engine that is there now; whoever sent it is who is answered.

        An engine can be heard before the front's word of it arrives: what is of neither this engine nor one up to
        `dead` waits until then.
        """
        for _ in range(len(self._early)):
            if (message := self._sorted(self._early.popleft(), engine_epoch, dead)) is not None:
                return message
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if (message := self._sorted(frames, engine_epoch, dead)) is not None:
                return message

    def _sorted(self, frames: list[bytes], engine_epoch: int | None, dead: int) -> FromEngine | None:
        try:
            if len(frames) != 3:
                raise ProtocolError("bad_frames", f"{len(frames)} frames where three were expected")
            loader, engine = unpack_epochs(frames[1])
            if loader != self._loader_epoch or engine <= dead:
                self.stale_messages += 1
                return None
            if engine != engine_epoch:
                self._early.append(frames)
                return None
            message = to_loader.decode(frames[2])
        except ProtocolError as error:
            self.bad_messages += 1
            log.warning("dropped %d bytes from an engine: %s", sum(map(len, frames)), error)
            return None
        self._peer, self._epochs = frames[0], pack_epochs(loader, engine)
        return message

    def send(self, message: EngineMessage | Welcome | NotWelcome | Limit | Hinting) -> None:
        """To the engine that was heard last; to a gone one it is dropped and counted."""
        if self._peer is None:
            self.unsent_messages += 1
            return
        try:
            self.socket.send_multipart([self._peer, self._epochs, to_engine.encode(message)], zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError) as error:
            self.unsent_messages += 1
            log.warning("%s could not be sent: %s", type(message).__name__, error)

    def forget_peer(self) -> None:
        """The engine is dead: nothing more goes to it."""
        self._peer = None

    def close(self) -> None:
        self.socket.close()
