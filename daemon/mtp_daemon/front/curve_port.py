"""The second socket clients may come by: TCP, CURVE only, and only for keys on the allow list.

ZeroMQ asks a ZAP handler (its RFC 27) at `inproc://zeromq.zap.01` about every handshake. Ours lives in the front's
poller: no thread of its own, and bound before the TCP socket, so no moment exists in which anyone is let in unasked.
"""

import logging

import zmq
from zmq.utils import z85

from mtp_daemon.errors import EnvironmentFailure
from mtp_daemon.front.listen import Listener

log = logging.getLogger("mtpd")

_DOMAIN = b"mtpd"
_ZAP = "inproc://zeromq.zap.01"
# A stranger holds a connection no longer than this without having proved a key; a peer that vanished is noticed.
_HANDSHAKE_MS, _HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5000, 5000, 15000


class CurvePort:
    """`socket` is the ROUTER for clients, `doorkeeper` the ZAP handler; poll both, one thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", listener: Listener) -> None:
        self.refused = 0
        self.address: str | None = None
        self._listener = listener
        self.doorkeeper: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.doorkeeper.setsockopt(zmq.LINGER, 0)
        self.doorkeeper.bind(_ZAP)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.CURVE_SERVER, 1),
            (zmq.IPV6, int(listener.ipv6)),
            (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS),
            # Without a handler nobody gets in, rather than everybody.
            (zmq.ZAP_ENFORCE_DOMAIN, 1),
        ):
            self.socket.setsockopt(option, value)
        self.socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, listener.public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, listener.secret)

    def bind(self) -> None:
        """Raises EnvironmentFailure when the address is taken or not ours."""
        assert self.socket.getsockopt(zmq.MECHANISM) == zmq.CURVE, "TCP without CURVE must be impossible"
        try:
            self.socket.bind(self._listener.address)
        except zmq.ZMQError as error:
            raise EnvironmentFailure(f"cannot listen at {self._listener.address}: {error.strerror}") from error
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        log.info("listening at %s for %d keys", self.address, len(self._listener.allowed()))

    def answer_handshakes(self, limit: int = 64) -> None:
        """Every one that waits, up to `limit`: a known key is let in, everything else is not."""
        for _ in range(limit):
            try:
                frames = self.doorkeeper.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.doorkeeper.send_multipart(self._answer(frames))

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        # Version, request, domain, peer, identity, mechanism, and for CURVE one key of 32 bytes.
        frames = frames + [b""] * (7 - len(frames))
        version, request, domain, peer, _identity, mechanism, key = frames[:7]
        known = version == b"1.0" and domain == _DOMAIN and mechanism == b"CURVE" and len(key) == 32
        name = z85.encode(key) if known else b""
        if known and name in self._listener.allowed():
            return [b"1.0", request, b"200", b"OK", name, b""]
        self.refused += 1
        log.warning("refused %s: key %s is not allowed", peer.decode("ascii", "replace"), name.decode() or "?")
        return [b"1.0", request, b"400", b"this key is not on the allow list", b"", b""]

    def close(self, linger_ms: int) -> None:
        self.socket.close(linger=linger_ms)
        self.doorkeeper.close(linger=0)
