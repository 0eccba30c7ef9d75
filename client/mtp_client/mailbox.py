"""Sorts what the front says: replies by `ref`, a request's events by its id."""

import time
from collections import deque
from itertools import count
from typing import Any, TypeVar, assert_never

from mtp_client.connection import Connection
from mtp_client.errors import ClientError, ConnectionLost, ServiceBug, from_failed
from mtp_protocol.client_messages import (
    Accepted,
    Alive,
    Cancel,
    Done,
    Failed,
    Finished,
    FromClient,
    Progress,
    ToClient,
    Tokens,
    Welcome,
)

Event = Accepted | Progress | Tokens | Finished

R = TypeVar("R")


class Mailbox:
    """Owns the connection, and what was received but not yet asked for. One thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refs = count(1)
        self._replies: dict[int, deque[ToClient]] = {}
        self._streams: dict[bytes, deque[Event | Failed]] = {}
        self._abandoned: set[bytes] = set()

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def close(self) -> None:
        self._connection.close()

    def next_ref(self) -> int:
        return next(self._refs)

    def send(self, message: FromClient) -> None:
        self._connection.send(message)

    def open(self, message: FromClient) -> None:
        """Send a Submit or Attach, whose Accepted or Failed `next_event` will hand out."""
        self._connection.send(message)
        self._replies[message.ref] = deque()

    def ask(self, message: FromClient, answer: type[R], wait_s: float) -> R:
        """Send a message that is answered once, by `answer`; raises ClientError when it is answered otherwise."""
        self.open(message)
        replies = self._replies[message.ref]
        deadline = time.monotonic() + wait_s
        try:
            while not replies:
                received = self._connection.receive(deadline)
                if received is None:
                    raise ConnectionLost(f"no answer from the mtpd service within {wait_s:g} s")
                self._file(received)
        finally:
            del self._replies[message.ref]
        reply = replies.popleft()
        if isinstance(reply, Failed):
            raise from_failed(reply)
        if not isinstance(reply, answer):
            raise ServiceBug("protocol", f"{type(message).__name__} was answered by {type(reply).__name__}")
        return reply

    def next_event(self, ref: int, request: bytes | None, deadline: float | None) -> Event | Failed | None:
        """The next event of one request, None at the monotonic `deadline`; others' events wait in their own queues."""
        while True:
            queue: deque[Any] | None = self._replies.get(ref) if request is None else self._streams.get(request)
            if queue:
                event: Event | Failed = queue.popleft()
                if request is None:
                    del self._replies[ref]
                elif isinstance(event, Finished | Failed):
                    del self._streams[request]
                return event
            received = self._connection.receive(deadline)
            if received is None:
                return None
            self._file(received)

    def abandon(self, request: bytes) -> None:
        """Cancel a request nobody follows any more, without waiting for its last word."""
        self._streams.pop(request, None)
        self._abandoned.add(request)
        try:
            self.send(Cancel(self.next_ref(), request))
        except ClientError:
            self._abandoned.discard(request)

    def _file(self, message: ToClient) -> None:
        match message:
            case Progress() | Tokens() | Finished():
                self._file_event(message.request, message)
            case Failed() if message.request is not None:
                self._file_event(message.request, message)
            case Failed() if message.ref is None:
                raise from_failed(message)
            case Accepted() | Done() | Welcome() | Failed():
                assert message.ref is not None  # the cases above took the others
                if message.ref in self._replies:
                    if isinstance(message, Accepted):
                        self._streams[message.request] = deque()
                    self._replies[message.ref].append(message)
            case Alive():
                pass  # it says that the front lives, which the connection has noted
            case _:
                assert_never(message)

    def _file_event(self, request: bytes, event: Event | Failed) -> None:
        if request in self._abandoned:
            if isinstance(event, Finished | Failed):
                self._abandoned.discard(request)
        elif request in self._streams:
            self._streams[request].append(event)
