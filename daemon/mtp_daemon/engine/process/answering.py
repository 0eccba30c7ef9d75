"""One request, from Start to its one terminal message. Runs on the MLX thread."""

import logging
from collections.abc import Callable

from mtp_daemon.engine.decode.decoder import Decoder
from mtp_daemon.engine.errors import EngineBug, EngineError, EngineStopping, RequestRefused
from mtp_daemon.engine.process.answer_stats import Clock
from mtp_daemon.engine.process.mailbox import Activity, Mailbox
from mtp_daemon.engine.process.request_settings import Prepared, prepare
from mtp_daemon.engine.process.serving import Serving
from mtp_daemon.engine.text import AnswerText, Piece
from mtp_protocol.client_messages import Reason, TokenLogprobs, Usage
from mtp_protocol.engine_messages import Failed, Finished, FromEngine, Progress, Start, Tokens

log = logging.getLogger(__name__)


def answer(
    start: Start, serving: Serving, send: Callable[[FromEngine], None], mailbox: Mailbox, activity: Activity
) -> None:
    """Sends Progress, Tokens and exactly one of Finished and Failed, whatever goes wrong.

    Only a signal's stop leaves the request unanswered: it is the next engine's.
    Raises EngineBug afterwards when our own rules were broken: the process must not go on with that state.
    """
    try:
        prepared = prepare(start, serving)
        send(_Answer(start, prepared, serving, send, mailbox, activity).run())
    except EngineStopping:
        if not mailbox.stopped_by_front:
            raise
        send(Failed(start.request, "environment", "the service is stopping"))
    except EngineError as error:
        refused = isinstance(error, RequestRefused)  # the user's mistake: no warning about this process
        log.log(logging.INFO if refused else logging.WARNING, "request failed: %s", error)
        send(Failed(start.request, error.kind, str(error)))
        if isinstance(error, EngineBug):
            raise
    except Exception as error:  # a request's boundary: it is answered, logged, and the process starts afresh
        log.exception("a request failed in a way that no one foresaw")
        send(Failed(start.request, "internal", f"{type(error).__name__}: {error}"))
        raise EngineBug(str(error)) from error
    finally:
        mailbox.forget(start.request)


class _Answer:
    def __init__(
        self,
        start: Start,
        prepared: Prepared,
        serving: Serving,
        send: Callable[[FromEngine], None],
        mailbox: Mailbox,
        activity: Activity,
    ) -> None:
        self._start, self._prepared, self._serving = start, prepared, serving
        self._send, self._mailbox, self._activity = send, mailbox, activity
        self._clock = Clock(serving.stream)
        vocabulary = serving.vocabulary
        self._text = AnswerText(vocabulary.decode, vocabulary.eos, start.stop, start.delivered)
        self._logprobs: list[TokenLogprobs] = []  # of ids that are not released yet, from `_text.released` on

    def run(self) -> Finished:
        delivered, limit = len(self._start.delivered), self._prepared.limit
        if self._text.ended:
            return self._finished("stop", {})
        if delivered >= limit:
            return self._finished("length", {})
        decoder = Decoder(
            self._serving.target,
            self._prepared.decode,
            self._prepared.prompt,
            self._start.sampling,
            self._start.delivered,
            controller=self._prepared.controller,
        )
        try:
            reason = self._decode(decoder, limit - delivered)
            if self._prepared.learns:
                self._serving.controller = self._prepared.controller
            return self._finished(reason, decoder.stats())
        finally:
            decoder.close()

    def _decode(self, decoder: Decoder, limit: int) -> Reason:
        if not decoder.prefill(self._progress, self._cancelled):
            return "cancelled"
        self._clock.prefill_ended()
        left = limit
        while left > 0:
            if self._cancelled():
                self._release(self._text.finish())
                return "cancelled"
            run = decoder.round(left)
            self._activity.step()
            self._clock.token()
            left -= len(run.ids)
            self._logprobs += run.logprobs
            self._release(self._text.add(run.ids))
            if self._text.ended:
                return "stop"
        self._release(self._text.finish())
        return "stop" if self._text.ended else "length"

    def _cancelled(self) -> bool:
        return self._mailbox.check(self._start.request)

    def _progress(self, done: int, total: int) -> None:
        self._activity.step()
        self._send(Progress(self._start.request, done, total))

    def _release(self, piece: Piece | None) -> None:
        if piece is None:
            return
        count = len(piece.ids)
        logprobs, self._logprobs = tuple(self._logprobs[:count]), self._logprobs[count:]
        self._clock.sent()
        self._send(Tokens(self._start.request, piece.seq, piece.ids, piece.text, logprobs))

    def _finished(self, reason: Reason, decoded: dict[str, object]) -> Finished:
        delivered, released = len(self._start.delivered), self._text.released
        numbers = self._clock.numbers(decoded, released, delivered)
        return Finished(self._start.request, reason, Usage(len(self._prepared.prompt), released), numbers)
