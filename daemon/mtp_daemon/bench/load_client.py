"""One client of a load: asks when it is due to, and writes down when what came. A thread each."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtp_client.connection import Connection
from mtp_client.errors import ClientError
from mtp_daemon.bench.load_plan import Arrival
from mtp_protocol.client_messages import Accepted, Cancel, Failed, Finished, Hello, Submit, ToClient, Tokens

_LAST_WORD_S = 5.0
_HELLO = 1


@dataclass
class Asked:
    """One request: when it was due, and what came of it. Times on the monotonic clock.

    `runs` are (arrival, tokens). `outcome`: "length" and "stop" as the service says, a kind of failure, or "cut" for
    one that had not ended when time was up.
    """

    client: int
    due_s: float
    prompt_tokens: int
    runs: list[tuple[float, int]] = field(default_factory=list)
    outcome: str = "cut"
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def whole(self) -> bool:
        return self.outcome in ("length", "stop")


class LoadClient(threading.Thread):
    """`arrivals` are this client's own, due from `began_s` on; after `until_s` what is open is cancelled.

    Owns its connection. `asked` may be read once the thread has ended; `error` says why it ended early.
    """

    def __init__(
        self, run_directory: Path, prompt: Sequence[int], arrivals: Sequence[Arrival], tokens: int, began_s: float,
        until_s: float,
    ) -> None:  # fmt: skip
        super().__init__(name="load-client", daemon=True)
        self._run_directory, self._prompt, self._tokens = run_directory, prompt, tokens
        self._due = deque((began_s + a.at_s, a) for a in arrivals)
        self._until_s = until_s
        self._by_ref: dict[int, Asked] = {}
        self._by_id: dict[bytes, Asked] = {}
        self._open = 0
        self.asked: list[Asked] = []
        self.error: str | None = None

    def run(self) -> None:
        try:
            connection = Connection(self._run_directory)
            try:
                connection.send(Hello(_HELLO, "mtp-bench"))
                self._follow(connection)
                self._cancel(connection)
            finally:
                connection.close()
        except ClientError as error:
            self.error = str(error)

    def _follow(self, connection: Connection) -> None:
        while (self._due or self._open) and (now := time.monotonic()) < self._until_s:
            while self._due and self._due[0][0] <= now:
                self._submit(connection, *self._due.popleft())
            next_s = self._due[0][0] if self._due else self._until_s
            if (message := connection.receive(min(next_s, self._until_s))) is not None:
                self._take(message, time.monotonic())

    def _submit(self, connection: Connection, due_s: float, arrival: Arrival) -> None:
        ref = _HELLO + 1 + len(self.asked)
        asked = Asked(arrival.client, due_s, arrival.prompt_tokens)
        self.asked.append(asked)
        self._by_ref[ref] = asked
        self._open += 1
        ids = tuple(self._prompt[: arrival.prompt_tokens])
        connection.send(Submit(ref, prompt_ids=ids, raw=True, max_tokens=self._tokens))

    def _take(self, message: ToClient, now: float) -> None:
        match message:
            case Accepted(ref, request):
                self._by_id[request] = self._by_ref[ref]
            case Tokens() if message.ids:
                self._by_id[message.request].runs.append((now, len(message.ids)))
            case Finished():
                asked = self._by_id[message.request]
                asked.outcome, asked.stats = message.reason, dict(message.stats)
                self._open -= 1
            case Failed() if message.request is not None:
                self._by_id[message.request].outcome = message.kind
                self._open -= 1
            case Failed() if message.ref in self._by_ref:
                self._by_ref[message.ref].outcome = message.kind
                self._open -= 1
            case _:
                pass  # Welcome, Progress, the answers to Cancel

    def _cancel(self, connection: Connection) -> None:
        """Leave nothing behind that would go on."""
        left = [request for request, asked in self._by_id.items() if asked.outcome == "cut"]
        for number, request in enumerate(left):
            connection.send(Cancel(_HELLO + 1 + len(self.asked) + number, request))
        deadline = time.monotonic() + _LAST_WORD_S
        ended = 0
        while ended < len(left) and (message := connection.receive(deadline)) is not None:
            ended += isinstance(message, Finished | Failed) and message.request is not None
