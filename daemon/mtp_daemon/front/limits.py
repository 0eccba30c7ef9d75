"""What a request may ask for. Checked before it is accepted, so that a refusal comes at once."""

from dataclasses import dataclass, replace

from mtp_daemon.config import Settings
from mtp_daemon.errors import RequestError
from mtp_protocol.bounds import MAX_ITEMS
from mtp_protocol.client_messages import MAX_STOPS, Submit
from mtp_protocol.codec import MAX_MESSAGE_BYTES
from mtp_protocol.engine_messages import Start, to_engine
from mtp_protocol.errors import ProtocolError

MAX_STOP_BYTES = 1024
# The engine drafts no deeper whatever it is asked.
MAX_DEPTH = 32
MAX_REQUESTS_PER_CLIENT = 64
MAX_WAY = 64
# Of one token's id in a message, and of a long array's length beside an empty one's.
MAX_TOKEN_BYTES, _LENGTH_BYTES = 5, 4


@dataclass(frozen=True)
class Limits:
    """`context` bounds an answer's length; the engine, which knows the prompt's tokens, checks their sum."""

    context: int
    default_max_tokens: int
    max_queue: int
    max_prompt_bytes: int
    keep_limit_s: float

    def within(self, context: int) -> "Limits":
        """These limits for a model that reads no more than `context` tokens."""
        return replace(self, context=min(self.context, context))

    def check(self, submit: Submit) -> int:
        """The answer's length in tokens; raises RequestError naming the field."""
        self._check_prompt(submit)
        self._check_ids(submit)
        if len(submit.stop) > MAX_STOPS or any(not 0 < len(s.encode()) <= MAX_STOP_BYTES for s in submit.stop):
            raise RequestError("bad_request", f"stop: at most {MAX_STOPS} texts of 1 to {MAX_STOP_BYTES} bytes each")
        if submit.speculation is not None and len(submit.speculation) > MAX_WAY:
            raise RequestError("bad_request", "speculation: no way to draft has so long a name")
        if submit.depth is not None and not 0 <= submit.depth <= MAX_DEPTH:
            raise RequestError("bad_request", f"depth must lie in 0..{MAX_DEPTH}, not {submit.depth}")
        if not 0 <= submit.keep_s <= self.keep_limit_s:
            raise RequestError("bad_request", f"keep_s must lie in 0..{self.keep_limit_s:g}, not {submit.keep_s:g}")
        return self._answer_length(submit.max_tokens)

    def _answer_length(self, asked: int | None) -> int:
        if asked is None:
            return min(self.default_max_tokens, self.context)
        if asked < 0:
            raise RequestError("bad_request", f"max_tokens must not be negative ({asked})")
        if asked > MAX_ITEMS:
            raise RequestError("too_long", f"max_tokens {asked} is more than any answer may have ({MAX_ITEMS})")
        if asked > self.context:
            raise RequestError("too_long", f"max_tokens {asked} is more than the context of {self.context} tokens")
        return asked

    def _check_prompt(self, submit: Submit) -> None:
        if (submit.prompt is None) == (submit.prompt_ids is None):
            raise RequestError("bad_request", "give exactly one of prompt and prompt_ids")
        size = len((submit.prompt or "").encode()) + len((submit.system or "").encode())
        if size > self.max_prompt_bytes:
            raise RequestError("too_long", f"the prompt has {size} bytes; the limit is {self.max_prompt_bytes}")

    def _check_ids(self, submit: Submit) -> None:
        if submit.prompt_ids is None:
            return
        if submit.system is not None:
            raise RequestError("bad_request", "system goes with prompt; prompt_ids are read as they are: put it there")
        if not submit.prompt_ids:
            raise RequestError("bad_request", "the prompt is empty: give at least one token")
        if len(submit.prompt_ids) > self.context:
            raise RequestError(
                "too_long", f"the prompt has {len(submit.prompt_ids)} tokens; the context is {self.context}"
            )


def check_start(start: Start) -> None:
    """The engine must be able to get it, now and once more with the whole answer after a crash.

    Raises RequestError with the limit: what does not fit one message is refused before it is accepted.
    """
    answer = MAX_TOKEN_BYTES * start.max_tokens + _LENGTH_BYTES
    try:
        size = len(to_engine.encode(start))
    except ProtocolError as error:
        raise RequestError("too_long", f"the request does not fit one message to the engine: {error}") from error
    if size + answer > MAX_MESSAGE_BYTES:
        raise RequestError(
            "too_long",
            f"the request takes {size} bytes and its answer may take {answer}; together they may take "
            f"{MAX_MESSAGE_BYTES}: shorten the prompt or lower max_tokens",
        )


def limits_of(settings: Settings) -> Limits:
    return Limits(
        context=settings.context,
        default_max_tokens=settings.max_tokens,
        max_queue=settings.max_queue,
        max_prompt_bytes=settings.max_prompt_bytes,
        keep_limit_s=settings.keep_limit_s,
    )
