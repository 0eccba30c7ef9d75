"""One request from Submit to its terminal message, and one client's view of it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, Protocol

from mtp_daemon.front.token_log import TokenLog
from mtp_protocol import engine_messages as e
from mtp_protocol.client_messages import Failed, Finished, Progress, Submit, ToClient, Tokens

MAX_KEPT = 256


class Request:
    """Owned by Sessions, which alone changes it."""

    def __init__(self, request: bytes, owner: bytes, submit: Submit, max_tokens: int, now: float) -> None:
        self.id = request
        self.owner = owner
        self.submit = submit
        self.max_tokens = max_tokens
        self.log = TokenLog()
        self.state: Literal["queued", "running", "ended"] = "queued"
        self.terminal: Finished | Failed | None = None
        self.progress: Progress | None = None
        self.followers: set[bytes] = set()
        self.cancelled = False
        self.submitted_at = now
        self.started_at: float | None = None
        # Engines that died on this request since it last got a token on, and all of them.
        self.deaths_in_a_row = 0
        self.deaths = 0
        self.ahead_at_first = 0
        self.keep_until: float | None = None

    def start(self) -> e.Start:
        """What the engine is told; after a crash it goes on where the log ends."""
        submit = self.submit
        return e.Start(
            request=self.id,
            prompt=submit.prompt,
            prompt_ids=submit.prompt_ids,
            raw=submit.raw,
            system=submit.system,
            max_tokens=self.max_tokens,
            stop=submit.stop,
            sampling=submit.sampling,
            speculation=submit.speculation,
            depth=submit.depth,
            delivered=self.log.ids,
        )

    def finished(self, message: e.Finished, now: float) -> Finished:
        """The engine's last word with what only the front knows. The log is what the client got, so its length is
        what was completed, whatever a restarted engine counted.
        """
        queued_s = (self.started_at if self.started_at is not None else now) - self.submitted_at
        stats = {**message.stats, "queued_s": round(queued_s, 6), "restarts": self.deaths}
        usage = replace(message.usage, completion_tokens=len(self.log))
        return Finished(self.id, message.reason, usage, stats)


def surplus(requests: Iterable[Request]) -> list[Request]:
    """Ended requests that are kept beyond MAX_KEPT, the oldest first: what is kept for clients that left is bounded."""
    kept = [r for r in requests if r.state == "ended" and r.keep_until is not None]
    return sorted(kept, key=lambda r: r.keep_until or 0.0)[: max(0, len(kept) - MAX_KEPT)]


class Stream:
    """How far one client has been told of one request. What is still to tell is read from the log, so a client that
    does not read costs a cursor, not a queue.
    """

    def __init__(self, request: Request, position: int) -> None:
        self.request = request
        self.ended = False
        self._run = request.log.run_at(position)
        self._next_run = self._run
        self._progress: Progress | None = None

    def pending(self) -> ToClient | None:
        """The next message for the client; call `sent` with it once it is on its way."""
        request = self.request
        if self._run < request.log.runs:
            run, self._next_run = request.log.batch(self._run)
            return Tokens(request.id, run.seq, run.ids, run.text, run.logprobs)
        if request.terminal is not None:
            return None if self.ended else request.terminal
        return request.progress if request.progress is not self._progress else None

    def sent(self, message: ToClient) -> None:
        match message:
            case Tokens():
                self._run = self._next_run
            case Progress():
                self._progress = message
            case _:
                self.ended = True


class Audience(Protocol):
    """The clients, as far as sessions need them."""

    def reply(self, client: bytes, message: ToClient) -> None: ...

    def follow(self, client: bytes, stream: Stream) -> None: ...

    def followed(self, client: bytes) -> int: ...
