"""A client of the soak: asks one thing after another, as clients do, and checks every answer."""

import logging
import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mtp_client.answer import Answer
from mtp_client.client import Client
from mtp_client.errors import ClientError, NotRunning
from mtp_protocol.client_messages import Finished, Tokens
from mtp_protocol.sampling import Sampling
from support.soak.questions import DRAWN, TOKENS, Question, Right
from support.soak.service import READY_S, Service, Wrong

log = logging.getLogger("soak")

Kind = Literal["greedy", "seeded", "sampled", "stopped", "cancelled", "slow", "left", "kept"]
_WEIGHTS: dict[Kind, int] = {
    "greedy": 6, "seeded": 3, "sampled": 1, "stopped": 2, "cancelled": 3, "slow": 1, "left": 2, "kept": 2,
}  # fmt: skip
_WAYS = (None, "off", "chain", "adaptive", "rescue", "tree", "adaptive+rescue")
_SLOW_S = 0.15


@dataclass(frozen=True)
class Wish:
    """One request: what is asked, how it is drafted, and at which token the client changes its mind."""

    kind: Kind
    question: Question
    speculation: str | None
    depth: int | None
    tokens: int
    at: int

    def fields(self) -> dict[str, Any]:
        """As for `Client.generate`."""
        fields: dict[str, Any] = {"prompt_ids": self.question.prompt, "max_tokens": self.tokens, "raw": True}
        fields |= {"speculation": self.speculation, "depth": self.depth}
        if self.kind == "seeded":
            fields["sampling"] = Sampling(**DRAWN)  # type: ignore[arg-type]
        if self.kind == "sampled":
            fields["sampling"] = Sampling(temperature=1.0)
        if self.kind == "stopped":
            fields["stop"] = (self.stop,)
        if self.kind == "kept":
            fields["keep_s"] = 30.0
        return fields

    @property
    def right(self) -> Right:
        return self.question.seeded if self.kind == "seeded" else self.question.greedy

    @property
    def stop(self) -> str:
        """Three characters out of the right answer, so that it stops there or earlier."""
        text = self.right.text
        middle = min(len(text) // 2, self.at)
        return text[middle : middle + 3] or "never"


def draw(rng: random.Random, questions: Sequence[Question]) -> Wish:
    """A wish by chance."""
    kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    way = rng.choice(_WAYS)
    depth = rng.choice((None, 1, 2, 3)) if way != "off" else None
    return Wish(kind, rng.choice(questions), way, depth, rng.choice((1, 8, 24, TOKENS)), rng.randrange(0, 24))


@dataclass(frozen=True)
class Came:
    """Tokens came at this monotonic time."""

    at: float


@dataclass(frozen=True)
class Answered:
    """What the driver hears of each request."""

    kind: Kind
    tokens: int
    stats: dict[str, Any]


class Asker(threading.Thread):
    """Owner of one connection. `tokens` and `idle` are written by this thread only and read by the driver."""

    def __init__(self, number: int, seed: int, service: Service, questions: Sequence[Question]) -> None:
        super().__init__(name=f"asker-{number}", daemon=True)
        self._rng = random.Random(f"{seed}/{number}")
        self._service, self._questions = service, questions
        self._client: Client | None = None
        self.tokens = 0
        self.told: queue.SimpleQueue[Came | Answered | Exception] = queue.SimpleQueue()
        self.open_gate = threading.Event()
        self.idle = threading.Event()
        self.leaving = False

    def run(self) -> None:
        try:
            while self._gate():
                wish = draw(self._rng, self._questions)
                life = self._service.lives
                try:
                    self._ask(wish)
                except ClientError as error:
                    self._hang_up()
                    if life == self._service.lives:
                        raise Wrong(f"nobody had killed the service, but: {error}; {wish.kind}") from error
        except Exception as error:  # the thread's boundary: the driver ends the soak with it
            log.exception("asker")
            self.told.put(error)
        finally:
            self._hang_up()
            self.idle.set()

    def _gate(self) -> bool:
        """Waits while the driver wants silence; False when it is over."""
        if not self.open_gate.is_set():
            self.idle.set()
            self.open_gate.wait()
            self.idle.clear()
        return not self.leaving

    def _connection(self) -> Client:
        deadline = time.monotonic() + READY_S
        while self._client is None or self._client.closed:
            try:
                self._client = self._service.client()
            except NotRunning:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, wish: Wish) -> None:
        answer = self._connection().generate(**wish.fields())
        heard = Heard(wish)
        for event in answer:
            if isinstance(event, Tokens):
                self._heard(heard, event)
                if wish.kind == "slow":
                    time.sleep(_SLOW_S)
            elif isinstance(event, Finished):
                heard.finished(event)
                self.told.put(Answered(wish.kind, len(heard.ids), dict(event.stats)))
            if self._changes_its_mind(wish, heard, answer):
                return

    def _heard(self, heard: "Heard", event: Tokens) -> None:
        self.told.put(Came(time.monotonic()))
        heard.tokens(event)
        self.tokens += len(event.ids)

    def _changes_its_mind(self, wish: Wish, heard: "Heard", answer: Answer) -> bool:
        if heard.done or answer.request is None or len(heard.ids) < min(wish.at, wish.tokens - 1):
            return False
        if wish.kind == "cancelled":
            finished = answer.cancel(wait_s=60.0)
            if finished is None or finished.reason not in ("cancelled", "length", "stop"):
                raise Wrong(f"a cancelled request ended with {finished}")
            self.told.put(Answered(wish.kind, len(heard.ids), {}))
            return True
        if wish.kind == "left":
            self._hang_up()
            self.told.put(Answered(wish.kind, len(heard.ids), {}))
            return True
        if wish.kind == "kept":
            self._come_back(wish, heard, answer.request)
            return True
        return False

    def _come_back(self, wish: Wish, heard: "Heard", request: bytes) -> None:
        """The request was kept: from another connection, the rest of it is there."""
        self._hang_up()
        for event in self._connection().attach(request, len(heard.ids)):
            if isinstance(event, Tokens):
                self._heard(heard, event)
            elif isinstance(event, Finished):
                heard.finished(event)
                self.told.put(Answered(wish.kind, len(heard.ids), dict(event.stats)))


class Heard:
    """One answer as it came in, held against the right one. Raises Wrong at the first token that differs."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self.ids: list[int] = []
        self.text = ""
        self.done = False

    def tokens(self, event: Tokens) -> None:
        if event.seq != len(self.ids):
            raise Wrong(f"token {event.seq} came after {len(self.ids)} tokens: {self._name}")
        self.ids += event.ids
        self.text += event.text
        right = self._wish.right.ids[: len(self.ids)]
        if self._wish.kind != "sampled" and tuple(self.ids) != right:
            raise Wrong(f"wrong tokens: {self._name}: {self.ids} instead of {list(right)}")

    def finished(self, event: Finished) -> None:
        self.done = True
        if event.usage.completion_tokens != len(self.ids):
            raise Wrong(f"{event.usage.completion_tokens} tokens were counted, {len(self.ids)} came: {self._name}")
        wish = self._wish
        if wish.kind == "sampled":
            if event.reason == "length" and len(self.ids) != wish.tokens:
                raise Wrong(f"{len(self.ids)} of {wish.tokens} tokens: {self._name}")
            return
        if wish.kind == "stopped":
            if event.reason == "stop" and wish.right.text.split(wish.stop)[0] != self.text:
                raise Wrong(f"stopped at the wrong place: {self._name}: {self.text!r}, stop {wish.stop!r}")
            if wish.stop in self.text:
                raise Wrong(f"the stop string came through: {self._name}")
            return
        wanted, whole = min(wish.tokens, len(wish.right.ids)), wish.tokens >= len(wish.right.ids)
        if len(self.ids) != wanted or (whole and self.text != wish.right.text):
            raise Wrong(f"{len(self.ids)} tokens instead of {wanted}, or another text: {self._name}: {self.text!r}")

    @property
    def _name(self) -> str:
        w = self._wish
        return f"{w.kind} {w.tokens} of prompt {w.question.prompt[:8]}…, {w.speculation} depth {w.depth}, at {w.at}"


def ended(error: Exception) -> str:
    """An asker's last word as one line."""
    return str(error) if isinstance(error, Wrong | ClientError) else f"{type(error).__name__}: {error}"
