"""The engine's socket to the loader: frames, epochs, and the loader's life polled together with it."""

import logging
import time
from typing import Any

import zmq

from mtp_daemon.engine.errors import EngineStopping
from mtp_daemon.engine.loader_life import LoaderDead, LoaderLife, LoaderUp, Stopping
from mtp_daemon.engine.stream_stats import StreamStats
from mtp_protocol.errors import ProtocolError
from mtp_protocol.expert_messages import ToEngine, ToLoader, pack_epochs, to_engine, to_loader, unpack_epochs

log = logging.getLogger(__name__)


class LoaderSocket:
    """A DEALER to the current loader's ROUTER. Created, used and closed by the MLX thread alone.

    `receive` gives messages of the current pair of epochs and the loader's rises and deaths; messages of another pair
    and bytes that are no message are counted and dropped.
    """

    def __init__(self, context: "zmq.Context[Any]", life: LoaderLife, engine_epoch: int, stats: StreamStats) -> None:
        self._context = context
        self._life = life
        self._engine_epoch = engine_epoch
        self._stats = stats
        self._socket: zmq.Socket[bytes] | None = None
        self._epochs = b""
        self._poller = zmq.Poller()
        self._poller.register(life.fileno(), zmq.POLLIN)
        self.loader_epoch: int | None = None

    def connect(self, loader: LoaderUp) -> None:
        """Leave the old loader, if any, and talk to this one, on a fresh socket: nothing queued for the old is sent."""
        self.disconnect()
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        # Both ends are ours and every Need is answered before the next is sent: nothing piles up, nothing may be lost.
        socket.sndhwm = socket.rcvhwm = 0
        socket.connect(loader.address)
        self._socket = socket
        self._poller.register(socket, zmq.POLLIN)
        self.loader_epoch = loader.epoch
        self._epochs = pack_epochs(loader.epoch, self._engine_epoch)

    def disconnect(self) -> None:
        if self._socket is not None:
            self._poller.unregister(self._socket)
            self._socket.close(0)
            self._socket = None
        self.loader_epoch = None

    def send(self, message: ToLoader) -> None:
        """Without waiting; to no one while there is no loader."""
        if self._socket is not None:
            self._socket.send_multipart([self._epochs, to_loader.encode(message)], copy=True)

    def receive(self, timeout_s: float = 0.0) -> ToEngine | LoaderUp | LoaderDead | None:
        """The next thing that happens, None after `timeout_s`. Raises EngineStopping."""
        until = time.monotonic() + timeout_s
        while True:
            if self._life and (event := self._take()) is not None:
                return event
            if (message := self._next_message()) is not None:
                return message
            left = until - time.monotonic()
            if timeout_s <= 0.0 or left <= 0.0:
                return None
            self._poller.poll(int(left * 1000) + 1)

    def wait(self, fd: int, timeout_s: float) -> None:
        """Until there may be something to receive, or `fd` is readable."""
        self._poller.register(fd, zmq.POLLIN)
        try:
            if not self._life:
                self._poller.poll(int(timeout_s * 1000))
        finally:
            self._poller.unregister(fd)

    def _take(self) -> LoaderUp | LoaderDead | None:
        event = self._life.take()
        if isinstance(event, Stopping):
            raise EngineStopping("the engine is stopping")
        return event

    def _next_message(self) -> ToEngine | None:
        """The next message of this pair of epochs that is there already."""
        while self._socket is not None:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                if len(frames) != 2:
                    raise ProtocolError("bad_frames", f"{len(frames)} frames where two were expected")
                unpack_epochs(frames[0])
                if frames[0] != self._epochs:
                    self._stats.stale_messages += 1
                    continue
                return to_engine.decode(frames[1])
            except ProtocolError as error:
                self._stats.bad_messages += 1
                log.warning("dropped %d bytes from the loader: %s", sum(map(len, frames)), error)
        return None
