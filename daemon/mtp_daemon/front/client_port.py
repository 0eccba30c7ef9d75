"""The socket clients talk to: bytes in, bytes out, nothing dropped without a word."""

import os
from typing import Literal

import zmq

from mtp_protocol.client_messages import FromClient, ToClient, from_client, to_client
from mtp_protocol.codec import MAX_MESSAGE_BYTES
from mtp_protocol.errors import ProtocolError

Outcome = Literal["sent", "full", "gone"]

# Messages ZeroMQ may hold for one client. Small: what a slow client has not read stays in the token log.
_HIGH_WATER = 64
_LINGER_MS = 200


class ClientPort:
    """A ROUTER. With ROUTER_MANDATORY and NOBLOCK a full or vanished client is an error here, not a lost message."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self.socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._path: str | None = None

    def bind(self, address: str) -> None:
        """From here on clients find us; the socket file is the user's alone. Raises zmq.ZMQError."""
        self.socket.bind(address)
        self._path = address.removeprefix("ipc://")
        os.chmod(self._path, 0o600)

    def receive(self) -> tuple[bytes, FromClient | ProtocolError] | None:
        """The next message and its client; None when there is none."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        client = frames[0]
        if len(frames) != 2:
            return client, ProtocolError("bad_envelope", f"a message is one frame, this one has {len(frames) - 1}")
        try:
            return client, from_client.decode(frames[1])
        except ProtocolError as error:
            return client, error

    def send(self, client: bytes, message: ToClient) -> Outcome:
        try:
            self.socket.send_multipart([client, to_client.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return "gone"
            raise
        return "sent"

    def close(self) -> None:
        """What was sent last gets a moment to reach clients that read."""
        self.socket.close(linger=_LINGER_MS)
