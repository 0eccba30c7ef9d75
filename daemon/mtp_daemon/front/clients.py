"""Every connected client: what it is still to be told, and whether it is there at all."""

from collections import deque
from collections.abc import Callable

from mtp_daemon.errors import RequestError
from mtp_daemon.front.client_port import Outcome
from mtp_daemon.front.request import Request, Stream
from mtp_protocol.client_messages import Alive, Failed, ToClient

# A gone client shows only when something is sent to it.
ALIVE_EVERY_S = 0.5
# Replies that a client may leave unread; one that asks on and never reads has cut itself off.
MAX_REPLIES = 256
# A refusal may quote what was asked for, which may have filled a message by itself.
MAX_REFUSAL = 2000
# A client that has taken nothing for so long, though there was something for it, is given up.
DEAF_LIMIT_S = 300.0
# How soon a full client is tried again: at once costs a core, late costs it speed.
RETRY_S = 0.005

Send = Callable[[bytes, ToClient], Outcome]


class _Client:
    def __init__(self, now: float) -> None:
        self.name = "?"
        self.replies: deque[ToClient] = deque()
        self.streams: list[Stream] = []
        self.sent_at = now
        self.full = False
        self.cut_off = False


class Clients:
    """Owner of the per-client queues. `on_unfollow` hears when a client has all of a request, or is gone."""

    def __init__(self, send: Send, max_clients: int, on_unfollow: Callable[[bytes, Request, float], None]) -> None:
        self._send = send
        self._max_clients = max_clients
        self._on_unfollow = on_unfollow
        self._clients: dict[bytes, _Client] = {}
        self.gone_count = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    @property
    def unsent(self) -> bool:
        """True while some client has not been told all there is to tell now."""
        return any(c.replies or any(s.pending() for s in c.streams) for c in self._clients.values())

    def admit(self, client: bytes, now: float) -> bool:
        """A message came from this client: False when it must not be served (too many clients, or cut off)."""
        known = self._clients.get(client)
        if known is None:
            if len(self._clients) >= self._max_clients:
                self._send(client, Failed("busy", f"{len(self._clients)} clients are connected already"))
                return False
            known = self._clients[client] = _Client(now)
        return not known.cut_off

    def name(self, client: bytes, name: str) -> None:
        self._clients[client].name = name[:64]

    def reply(self, client: bytes, message: ToClient) -> None:
        known = self._clients.get(client)
        if known is None or known.cut_off:
            return
        known.replies.append(message)
        if len(known.replies) >= MAX_REPLIES:
            known.replies.append(Failed("busy", f"{MAX_REPLIES} replies are unread: read them first"))
            known.cut_off = True

    def refuse(self, client: bytes, ref: int | None, error: RequestError) -> None:
        self.reply(client, Failed(error.kind, str(error)[:MAX_REFUSAL], ref=ref))

    def follow(self, client: bytes, stream: Stream) -> None:
        """A client that follows the request already begins anew: two streams of it could not be told apart."""
        known = self._clients[client]
        known.streams = [s for s in known.streams if s.request is not stream.request] + [stream]

    def followed(self, client: bytes) -> int:
        return len(self._clients[client].streams)

    def pump(self, now: float) -> float | None:
        """Send what can be sent; seconds until it is worth trying again, None when every client is up to date."""
        retry: float | None = None
        for identity in list(self._clients):
            outcome = self._pump_one(identity, self._clients[identity], now)
            if outcome == "gone":
                self._forget(identity, now)
            elif outcome == "full":
                retry = RETRY_S
        return retry

    def keep_alive(self, now: float) -> None:
        """Send each client something now and then; find out who is gone. Call at least twice in ALIVE_EVERY_S."""
        for identity, client in list(self._clients.items()):
            if client.full:
                if now - client.sent_at > DEAF_LIMIT_S:
                    self._forget(identity, now)
                continue
            if now - client.sent_at < ALIVE_EVERY_S / 2:
                continue
            outcome = self._send(identity, Alive())
            if outcome == "gone":
                self._forget(identity, now)
            elif outcome == "sent":
                client.sent_at = now

    def _pump_one(self, identity: bytes, client: _Client, now: float) -> Outcome:
        while client.replies:
            outcome = self._deliver(identity, client, client.replies[0], now)
            if outcome != "sent":
                return outcome
            client.replies.popleft()
        client.cut_off = False
        for stream in list(client.streams):
            while (message := stream.pending()) is not None:
                outcome = self._deliver(identity, client, message, now)
                if outcome != "sent":
                    return outcome
                stream.sent(message)
            if stream.ended:
                client.streams.remove(stream)
                self._on_unfollow(identity, stream.request, now)
        return "sent"

    def _deliver(self, identity: bytes, client: _Client, message: ToClient, now: float) -> Outcome:
        outcome = self._send(identity, message)
        client.full = outcome == "full"
        if outcome == "sent":
            client.sent_at = now
        return outcome

    def _forget(self, identity: bytes, now: float) -> None:
        client = self._clients.pop(identity)
        self.gone_count += 1
        for stream in client.streams:
            self._on_unfollow(identity, stream.request, now)
