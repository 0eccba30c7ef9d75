"""The I/O thread: the front's socket, the lifeline, a beat each second. It works on while MLX computes."""

import logging
import os
import socket
import threading
import time
from collections import deque
from typing import Any, assert_never

import zmq

from mtp_daemon.engine.process.mailbox import Activity, Mailbox
from mtp_protocol.engine_messages import (
    Beat,
    Cancel,
    FromEngine,
    LoaderDead,
    LoaderUp,
    Pool,
    Start,
    Stop,
    ToEngine,
    from_engine,
    to_engine,
)
from mtp_protocol.errors import ProtocolError
from mtp_protocol.lifeline import receive_region
from mtp_protocol.wake import Wake

log = logging.getLogger(__name__)

BEAT_S = 1.0
LAST_WORDS_MS = 1000
TERM_S = 5.0  # how long SIGTERM leaves, as Stop's deadline_s does


class FrontLink:
    """`send` is for the MLX thread; everything else happens on a thread of its own, which owns both sockets.

    The lifeline's end means that the front is dead: the process leaves at once, whatever MLX is doing. So it does when
    it was told to stop and has not left in time.
    """

    def __init__(
        self,
        context: "zmq.Context[Any]",
        address: str,
        identity: bytes,
        lifeline: socket.socket,
        mailbox: Mailbox,
        activity: Activity,
        signals_fd: int,
    ) -> None:
        """`signals_fd` gives a byte for each signal caught (`signal.set_wakeup_fd`)."""
        self._context, self._address, self._identity = context, address, identity
        self._lifeline, self._mailbox, self._activity = lifeline, mailbox, activity
        self._signals_fd = signals_fd
        self._outbox: deque[FromEngine] = deque()
        self._wake = Wake()
        self._leave_by: float | None = None
        self._ended = False
        self.bad_messages = 0
        self._thread = threading.Thread(target=self._run, name="front-link", daemon=True)
        self._thread.start()

    # -- the MLX thread --------------------------------------------------------------------------------------------

    def send(self, message: FromEngine) -> None:
        """In order, without waiting."""
        self._outbox.append(message)
        self._wake()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left and end the thread."""
        self._ended = True
        self._wake()
        self._thread.join(timeout_s)
        self._wake.close()

    # -- the I/O thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # the thread's boundary: without it the front hears nothing more and must start a new engine
            log.exception("the engine's I/O thread failed")
            os._exit(70)

    def _serve(self) -> None:
        front = self._context.socket(zmq.DEALER)
        front.setsockopt(zmq.IDENTITY, self._identity)
        front.linger = LAST_WORDS_MS
        # The front reads all the time; should it not, an answer's worth of messages may wait here and none is dropped.
        front.sndhwm = front.rcvhwm = 0
        front.connect(self._address)
        poller = zmq.Poller()
        for readable in (front, self._lifeline.fileno(), self._wake.fileno(), self._signals_fd):
            poller.register(readable, zmq.POLLIN)
        beat_at = time.monotonic()
        while not (self._ended and not self._outbox):
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + BEAT_S
                self._outbox.append(Beat(self._activity.progress, self._activity.busy, self._facts()))
            self._leave_if_overdue(now)
            while self._outbox:
                front.send(from_engine.encode(self._outbox.popleft()))
            ready = dict(poller.poll(max(0, int(1000 * (beat_at - now)))))
            if self._lifeline.fileno() in ready:
                self._read_lifeline()
            if self._signals_fd in ready and os.read(self._signals_fd, 4096):
                self._stop(TERM_S, by_front=False)
            if self._wake.fileno() in ready:
                self._wake.clear()
            if front in ready:
                self._receive(front)
        front.close()

    def _facts(self) -> dict[str, Any]:
        return {"bad_messages": self.bad_messages}

    def _read_lifeline(self) -> None:
        try:
            region = receive_region(self._lifeline)
        except ConnectionError:
            region = None
        if region is None:
            os._exit(0)
        generation, _nbytes, fd = region
        self._mailbox.region(generation, fd)

    def _receive(self, front: "zmq.Socket[bytes]") -> None:
        while True:
            try:
                body = front.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(to_engine.decode(body))
            except ProtocolError as error:
                self.bad_messages += 1
                log.warning("dropped %d bytes from the front: %s", len(body), error)

    def _take(self, message: ToEngine) -> None:
        match message:
            case Start():
                self._mailbox.start(message)
            case Cancel(request):
                self._mailbox.cancel(request)
            case Stop(deadline_s):
                self._stop(deadline_s, by_front=True)
            case Pool():
                self._mailbox.pool(message)
            case LoaderUp(epoch, address):
                self._mailbox.life.loader_up(epoch, address)
            case LoaderDead(epoch):
                self._mailbox.life.loader_dead(epoch)
            case _:
                assert_never(message)

    def _stop(self, deadline_s: float, *, by_front: bool) -> None:
        self._leave_by = min(self._leave_by or float("inf"), time.monotonic() + deadline_s)
        self._mailbox.stop(by_front=by_front)

    def _leave_if_overdue(self, now: float) -> None:
        if self._leave_by is not None and now > self._leave_by + LAST_WORDS_MS / 1000:
            log.warning("MLX did not return in time: leaving without it")
            os._exit(1)
