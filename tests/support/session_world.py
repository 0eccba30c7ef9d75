"""Sessions and clients without sockets: a world that tests drive by hand or at random."""

from dataclasses import dataclass, field

from mtp_daemon.errors import RequestError
from mtp_daemon.front.client_port import Outcome
from mtp_daemon.front.clients import Clients
from mtp_daemon.front.limits import Limits
from mtp_daemon.front.request import Request
from mtp_daemon.front.sessions import Sessions
from mtp_protocol import client_messages as c
from mtp_protocol import engine_messages as e

LIMITS = Limits(context=1000, default_max_tokens=8, max_queue=8, max_prompt_bytes=100, keep_limit_s=100.0)


@dataclass
class Socket:
    """One client's end: what arrived, and whether it takes anything."""

    heard: list[c.ToClient] = field(default_factory=list)
    state: Outcome = "sent"


class World:
    """Sessions and clients as the front wires them, with lists where sockets were."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sockets: dict[bytes, Socket] = {}
        self.engine: list[e.ToEngine] = []
        self.clients = Clients(self.send, 100, self.unfollow)
        self.sessions = Sessions(LIMITS, self.clients, self.engine.append)

    def send(self, client: bytes, message: c.ToClient) -> Outcome:
        socket = self.sockets[client]
        if socket.state == "sent":
            socket.heard.append(message)
        return socket.state

    def unfollow(self, client: bytes, request: Request, now: float) -> None:
        self.sessions.unfollow(client, request, now)

    def connect(self, client: bytes) -> None:
        self.sockets[client] = Socket()
        assert self.clients.admit(client, self.now)

    def submit(self, client: bytes, keep_s: float = 0.0) -> None:
        try:
            self.sessions.submit(client, c.Submit(1, prompt="x", keep_s=keep_s), self.now)
        except RequestError as error:
            assert error.kind == "busy"

    def pump(self) -> None:
        self.clients.pump(self.now)
