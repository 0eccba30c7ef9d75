"""A service on another machine: its address, its public key, and our own pair. Without all three there is no TCP."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import zmq

from mtp_client.errors import NotRunning, RequestRefused
from mtp_protocol.key_files import KeyFileError, read_pair, read_public

_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]*]+):(\d{1,5})")
_CONNECT_S, _HANDSHAKE_MS, _HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 3.0, 5000, 5000, 15000
_NO_HANDSHAKE = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

EVENTS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | _NO_HANDSHAKE | zmq.EVENT_HANDSHAKE_SUCCEEDED


@dataclass(frozen=True)
class Remote:
    """`server_key` is the service's public key, `public` and `secret` are ours (Z85)."""

    address: str
    server_key: bytes
    public: bytes
    secret: bytes

    def arm(self, dealer: "zmq.Socket[bytes]") -> None:
        """Before it connects: CURVE, and a notice when the other machine vanishes without closing."""
        dealer.setsockopt(zmq.CURVE_SERVERKEY, self.server_key)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        dealer.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        dealer.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        dealer.setsockopt(zmq.IPV6, int(self.address.startswith("tcp://[")))
        assert dealer.getsockopt(zmq.MECHANISM) == zmq.CURVE, "TCP without CURVE must be impossible"

    def probe(self) -> None:
        """Raises NotRunning when nobody listens there: ZeroMQ itself connects to nothing without a word."""
        host, port = self.address.removeprefix("tcp://").rsplit(":", 1)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            raise NotRunning(f"cannot reach a mtpd service at {self.address}: {error}") from error

    def handshake_fault(self, event: int) -> str | None:
        """What this event of the socket's monitor says went wrong, for a person; None if it is of another kind."""
        if event & zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return (
                f"the service at {self.address} does not know our key: have our public .key file put in the clients "
                "directory of its keys"
            )
        if event & _NO_HANDSHAKE:
            return f"no handshake with {self.address}: is --server-key really the public key of that service?"
        return None


# zmq.utils.monitor would do, but it imports asyncio, which costs a command more than its whole start.
_EVENT = Struct("=HI")


def event_of(frames: list[bytes]) -> int:
    """The number of the event that a monitor's message tells of."""
    number: int = _EVENT.unpack_from(frames[0])[0]
    return number


def remote(server: str | None, server_key: Path | str | None, key: Path | str | None) -> Remote | None:
    """None when no server is named. Raises RequestRefused for an address or a key that cannot be used."""
    if server is None:
        if server_key is not None or key is not None:
            raise RequestRefused("bad_request", "keys are for a server: name it too, as tcp://HOST:PORT")
        return None
    match = _ADDRESS.fullmatch(server)
    if match is None or not 0 < int(match[2]) < 65536:
        raise RequestRefused("bad_request", f"a server is tcp://HOST:PORT, not {server!r}")
    if server_key is None or key is None:
        raise RequestRefused("bad_request", "a server needs both keys: its public one, and our own (mtpd keygen)")
    try:
        public, secret = read_pair(Path(key))
        return Remote(server, read_public(Path(server_key)), public, secret)
    except KeyFileError as error:
        raise RequestRefused("bad_request", str(error)) from error
