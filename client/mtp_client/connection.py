"""One DEALER socket to the front: connect or say why not, send, receive, notice at once when the front dies."""

import contextlib
import fcntl
import os
import socket
import time
import weakref
from pathlib import Path

import zmq

from mtp_client import remote as remote_service
from mtp_client.errors import ConnectionLost, NotRunning, RequestRefused, ServiceBug
from mtp_protocol.client_messages import Alive, FromClient, ToClient, from_client, to_client
from mtp_protocol.codec import MAX_MESSAGE_BYTES
from mtp_protocol.errors import ProtocolError
from mtp_protocol.run_directory import client_address, lock_path

# The front sends every client something each 0.5 s; this long without a word it is hung.
SILENCE_S = 10.0
# One poll never lasts longer, so a machine that slept is seen as one late poll, not as ten silent seconds.
_POLL_S = 0.25


class Connection:
    """Not thread-safe: one thread per socket. Raises NotRunning when nobody serves `run_directory`, or at `remote`."""

    def __init__(self, run_directory: Path, remote: remote_service.Remote | None = None) -> None:
        self._remote = remote
        address = client_address(run_directory) if remote is None else remote.address
        if remote is None:
            _probe(run_directory, address.removeprefix("ipc://"))
        else:
            remote.probe()
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        # A restarted front knows nothing of this client: a lost connection is final and must be seen, not papered over.
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        endpoint = f"inproc://front-gone-{id(self)}"
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
        if remote is not None:
            remote.arm(self._socket)
            events |= remote_service.EVENTS
        self._socket.monitor(endpoint, events)
        self._gone: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._gone.setsockopt(zmq.LINGER, 0)
        self._gone.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._gone, zmq.POLLIN)
        self._silent_s = 0.0
        self._socket.connect(address)
        # `Client().generate(…)` leaves nobody to close the connection but the garbage collector.
        self._finish = weakref.finalize(self, _close, self._socket, self._gone, self._context)

    @property
    def closed(self) -> bool:
        return bool(self._socket.closed)

    def send(self, message: FromClient) -> None:
        """Raises ConnectionLost when the front does not take it, RequestRefused when it fits no message."""
        try:
            data = from_client.encode(message)
        except ProtocolError as error:
            raise RequestRefused("too_long" if error.kind == "too_large" else "bad_request", str(error)) from error
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again as error:
            raise ConnectionLost("the mtpd service does not take messages: it is hung or gone") from error

    def receive(self, deadline: float | None = None) -> ToClient | None:
        """The next message, Alive left out; None when the monotonic `deadline` passes first.

        Raises ConnectionLost when the front dies or says nothing for SILENCE_S of our own running time.
        """
        while True:
            wait_s = _POLL_S if deadline is None else min(_POLL_S, max(0.0, deadline - time.monotonic()))
            ready = dict(self._poller.poll(int(wait_s * 1000)))
            # The socket first, always: what the front said before it died is in there before its end is.
            data = self._take()
            if data is not None:
                self._silent_s = 0.0
                message = self._decode(data)
                if not isinstance(message, Alive):
                    return message
                continue
            if self._gone in ready:
                self._hear_monitor()
            self._silent_s += wait_s
            if self._silent_s > SILENCE_S:
                raise ConnectionLost(f"the mtpd service has said nothing for {SILENCE_S:.0f} s: it is hung")
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def _hear_monitor(self) -> None:
        """Raises ConnectionLost unless the event was the handshake's success."""
        frames = self._gone.recv_multipart()
        if self._remote is not None:
            event = remote_service.event_of(frames)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if fault := self._remote.handshake_fault(event):
                raise ConnectionLost(fault)
        raise ConnectionLost("the mtpd service died: its connection closed before the answer was complete")

    def _take(self) -> bytes | None:
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self) -> None:
        self._finish()

    @staticmethod
    def _decode(data: bytes) -> ToClient:
        try:
            return to_client.decode(data)
        except ProtocolError as error:
            raise ServiceBug("protocol", f"the service sent what is no message: {error}") from error


def _close(front: "zmq.Socket[bytes]", gone: "zmq.Socket[bytes]", context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    front.disable_monitor()
    gone.close()
    front.close()
    context.term()


def _probe(run_directory: Path, path: str) -> None:
    """ZeroMQ connects to nothing without a word, so ask the operating system first whether somebody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            pass
        except OSError as error:
            raise NotRunning(f"cannot reach the mtpd service at {path}: {error}") from error
        else:
            return
    if pid := daemon_pid(run_directory):
        raise NotRunning(f"mtpd (pid {pid}) is starting or stopping in {run_directory}: try again in a moment")
    raise NotRunning(f"no mtpd service runs in {run_directory}: start one with `mtpd serve MODEL`")


def daemon_pid(run_directory: Path) -> int | None:
    """The process id of the daemon that holds the run directory's lock, None when nobody does."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(lock_path(run_directory), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(fd, 32))
        finally:
            os.close(fd)
    return None
