"""The sockets clients talk to: bytes in, bytes out, nothing dropped without a word."""

import os
from typing import Literal

import zmq

from mtp_daemon.front.curve_port import CurvePort
from mtp_daemon.front.listen import Listener
from mtp_protocol.client_messages import FromClient, ToClient, from_client, to_client
from mtp_protocol.codec import MAX_MESSAGE_BYTES
from mtp_protocol.errors import ProtocolError

Outcome = Literal["sent", "full", "gone"]

# Messages ZeroMQ may hold for one client. Small: what a slow client has not read stays in the token log.
_HIGH_WATER = 64
_LINGER_MS = 200


# Which socket a client came by; before its ZeroMQ identity, it keeps the two sockets' clients apart.
_IPC, _TCP = b"i", b"t"


class ClientPort:
    """ROUTERs: `ipc://`, and TCP with CURVE if there is a listener.

    With ROUTER_MANDATORY and NOBLOCK a full or vanished client is an error here, not a lost message.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", listener: Listener | None = None) -> None:
        self._ipc: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.curve = CurvePort(context, listener) if listener is not None else None
        self._sockets = {_IPC: self._ipc} | ({_TCP: self.curve.socket} if self.curve is not None else {})
        for socket in self._sockets.values():
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
            socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._path: str | None = None

    @property
    def sources(self) -> list["zmq.Socket[bytes]"]:
        """What to poll."""
        return [*self._sockets.values(), *([self.curve.doorkeeper] if self.curve is not None else [])]

    def bind(self, address: str) -> None:
        """From here on clients find us; the socket file is the user's alone. TCP first: both or none.

        Raises zmq.ZMQError, EnvironmentFailure for TCP.
        """
        if self.curve is not None:
            self.curve.bind()
        self._ipc.bind(address)
        self._path = address.removeprefix("ipc://")
        os.chmod(self._path, 0o600)

    def receive(self) -> tuple[bytes, FromClient | ProtocolError] | None:
        """The next message and its client; None when there is none. The two sockets take turns."""
        if self.curve is not None:
            self.curve.answer_handshakes()
        for way in list(self._sockets):
            # Whichever is read goes to the end: a flood on one does not starve the other.
            socket = self._sockets.pop(way)
            self._sockets[way] = socket
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                continue
            return self._parse(way + frames[0], frames)
        return None

    @staticmethod
    def _parse(client: bytes, frames: list[bytes]) -> tuple[bytes, FromClient | ProtocolError]:
        if len(frames) != 2:
            return client, ProtocolError("bad_envelope", f"a message is one frame, this one has {len(frames) - 1}")
        try:
            return client, from_client.decode(frames[1])
        except ProtocolError as error:
            return client, error

    def send(self, client: bytes, message: ToClient) -> Outcome:
        try:
            self._sockets[client[:1]].send_multipart([client[1:], to_client.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return "gone"
            raise
        return "sent"

    def close(self) -> None:
        """What was sent last gets a moment to reach clients that read."""
        if self.curve is not None:
            self.curve.close(_LINGER_MS)
        self._ipc.close(linger=_LINGER_MS)
