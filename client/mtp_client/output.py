"""How `mtp-client` shows an answer: as text, or as one JSON object a line."""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TextIO, assert_never

from mtp_client.errors import ClientError
from mtp_client.mailbox import Event
from mtp_client.stats import stats_block
from mtp_protocol.client_messages import Accepted, Finished, Progress, Reason, TokenLogprobs, Tokens

# A wait shorter than this is not worth a line.
_QUIET_S = 0.5
_EVERY_S = 0.1


class Output(ABC):
    """Receives every event of an answer in order; `reason` is set by the last."""

    reason: Reason | None = None

    @abstractmethod
    def event(self, event: Event) -> None: ...

    @abstractmethod
    def failed(self, error: ClientError) -> None: ...


class TextOutput(Output):
    """The text on `out` as it comes; progress, statistics and errors on `err`."""

    def __init__(self, out: TextIO, err: TextIO, *, stats: bool) -> None:
        self._out = out
        self._err = err
        self._stats = stats
        self._last = ""
        self._line = ProgressLine(err)

    def event(self, event: Event) -> None:
        match event:
            case Accepted(ahead=ahead):
                if ahead:
                    self._line.show("queued", 0, ahead)
            case Progress():
                self._line.show(event.phase, event.done, event.total)
            case Tokens():
                self._line.clear()
                self._write(event.text)
            case Finished():
                self._line.clear()
                self.reason = event.reason
                self._end_line()
                if self._stats:
                    self._err.write(stats_block(event))
                    self._err.flush()
            case _:
                assert_never(event)

    def failed(self, error: ClientError) -> None:
        self._line.clear()
        self._end_line()
        self._err.write(f"mtp-client: {error}\n")
        self._err.flush()

    def _write(self, text: str) -> None:
        if text:
            self._last = text[-1]
            self._out.write(text)
            self._out.flush()

    def _end_line(self) -> None:
        if self._last not in ("", "\n"):
            self._write("\n")


class ProgressLine:
    """What a request waits for: one line rewritten on a terminal. A script's log stays free of it (`--json` has it)."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._terminal = err.isatty()
        self._next = time.monotonic() + _QUIET_S
        self._shown = False

    def show(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._terminal or now < self._next:
            return
        self._next = now + _EVERY_S
        match phase:
            case "queued":
                text = f"waiting: {max(0, total - done)} before us"
            case "recovering":
                text = f"the engine was restarted; reading again: {done} of {total} tokens"
            case _:
                text = f"reading the prompt: {done} of {total} tokens"
        self._err.write(f"\r\x1b[K{text}")
        self._err.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._shown = False


class JsonOutput(Output):
    """One JSON object a line on `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.reason = event.reason
        self._line(as_json(event))

    def failed(self, error: ClientError) -> None:
        self._line({"event": "failed", "kind": error.kind, "text": str(error)})
        sys.stderr.write(f"mtp-client: {error}\n")

    def _line(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value, ensure_ascii=False) + "\n")
        self._out.flush()


def as_json(event: Event) -> dict[str, Any]:
    """An event as `--json` prints it; request ids are hexadecimal."""
    request = event.request.hex()
    match event:
        case Accepted():
            return {"event": "accepted", "request": request, "ahead": event.ahead}
        case Progress():
            return {
                "event": "progress",
                "request": request,
                "phase": event.phase,
                "done": event.done,
                "total": event.total,
            }
        case Tokens():
            line = {
                "event": "tokens",
                "request": request,
                "seq": event.seq,
                "ids": list(event.ids),
                "text": event.text,
            }
            if event.logprobs:
                line["logprobs"] = [_logprobs(entry) for entry in event.logprobs]
            return line
        case Finished():
            usage = {
                "prompt_tokens": event.usage.prompt_tokens,
                "completion_tokens": event.usage.completion_tokens,
                "cached_tokens": event.usage.cached_tokens,
            }
            return {
                "event": "finished",
                "request": request,
                "reason": event.reason,
                "usage": usage,
                "stats": dict(event.stats),
            }
        case _:
            assert_never(event)


def _logprobs(entry: TokenLogprobs) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "top": [{"token": token, "logprob": logprob} for token, logprob in entry.top],
    }
