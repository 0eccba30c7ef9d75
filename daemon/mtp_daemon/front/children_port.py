"""The socket both children connect to."""

import os
from collections import deque
from typing import TypeVar

import zmq

from mtp_protocol.codec import MAX_MESSAGE_BYTES

_HIGH_WATER = 10_000
_MAX_WAITING = 10_000

T = TypeVar("T")


class ChildrenPort:
    """A ROUTER; a child's identity is its role and epoch. What a child cannot take yet waits here, in order."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self.socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.bind(address)
        os.chmod(address.removeprefix("ipc://"), 0o600)
        self._waiting: dict[bytes, deque[bytes]] = {}

    def open(self, identity: bytes) -> None:
        """A child with this identity was started: what is sent to it waits until it has connected."""
        self._waiting[identity] = deque()

    def drop(self, identity: bytes) -> None:
        """It is dead: nothing waits for it, nothing more is taken from it."""
        self._waiting.pop(identity, None)

    def receive(self) -> tuple[bytes, bytes] | None:
        """`(identity, body)` of the next message of a child that lives; a dead one's are passed over."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 2 and frames[0] in self._waiting:
                return frames[0], frames[1]

    def send(self, identity: bytes, body: bytes) -> bool:
        """False when the child is not there or does not read: it has more unread than a living child ever would."""
        waiting = self._waiting.get(identity)
        if waiting is None or len(waiting) >= _MAX_WAITING:
            return False
        waiting.append(body)
        self.flush()
        return True

    def flush(self) -> bool:
        """Try again what waits; True while something still does."""
        for identity, waiting in self._waiting.items():
            while waiting:
                try:
                    self.socket.send_multipart([identity, waiting[0]], zmq.NOBLOCK)
                except zmq.Again:
                    break
                except zmq.ZMQError as error:
                    if error.errno != zmq.EHOSTUNREACH:
                        raise
                    break  # it has not connected yet, or is about to be found dead
                waiting.popleft()
        return any(self._waiting.values())

    def close(self) -> None:
        self.socket.close()
