"""Every request's life: accepted, queued, run, ended once. Knows neither sockets nor processes.

Invariants, checked by `integrity.check`:
1. A request ends in exactly one terminal message, and nothing changes it after that.
2. The engine works on one request at a time, and gets the next only after the last one's terminal or its own death.
3. A request that is not ended is either the running one or waits in the queue, never both.
"""

import logging
import secrets
from collections.abc import Callable
from typing import assert_never

from mtp_daemon.errors import USER_KINDS, DaemonBug, RequestError, RequestKind
from mtp_daemon.front.fair_queue import FairQueue
from mtp_daemon.front.limits import MAX_REQUESTS_PER_CLIENT, Limits, check_start
from mtp_daemon.front.request import Audience, Request, Stream, surplus
from mtp_daemon.front.token_log import Run
from mtp_protocol import client_messages as c
from mtp_protocol import engine_messages as e

log = logging.getLogger("mtpd")

# A request that kills its engine this often without getting a token on is not tried again.
DEATHS_ON_ONE_REQUEST = 3


class Sessions:
    """Owner of all requests and of the queue."""

    def __init__(self, limits: Limits, audience: Audience, to_engine: Callable[[e.ToEngine], None]) -> None:
        self.limits = limits
        self.requests: dict[bytes, Request] = {}
        self.queue: FairQueue[Request] = FairQueue()
        self.running: Request | None = None
        self.refusal: RequestError | None = None
        ends = ("accepted", "finished", "cancelled", "refused", "failed", "turned_away", "stray")
        self.counts = dict.fromkeys(ends, 0)
        # What the engine works on, until its terminal message for it: also a request that has ended here meanwhile.
        self.engine_has: bytes | None = None
        self._engine_ready = False
        self._audience = audience
        self._to_engine = to_engine

    @property
    def busy(self) -> bool:
        """True while a request waits or runs, or the engine still has to let go of one."""
        return self.running is not None or self.engine_has is not None or len(self.queue) > 0

    def submit(self, client: bytes, submit: c.Submit, now: float) -> None:
        """Raises RequestError when it is refused."""
        if self.refusal is not None:
            raise self.refusal
        max_tokens = self.limits.check(submit)
        if len(self.queue) >= self.limits.max_queue:
            raise RequestError("busy", f"{len(self.queue)} requests wait already; try again later")
        if self._audience.followed(client) >= MAX_REQUESTS_PER_CLIENT:
            raise RequestError("busy", f"this client has {MAX_REQUESTS_PER_CLIENT} requests already")
        request = Request(secrets.token_bytes(16), client, submit, max_tokens, now)
        check_start(request.start())
        self.requests[request.id] = request
        self.queue.put(client, request)
        self.counts["accepted"] += 1
        request.ahead_at_first = self._ahead(request)
        self._audience.reply(client, c.Accepted(submit.ref, request.id, request.ahead_at_first))
        log.info("request=%s accepted ahead=%d", request.id.hex(), request.ahead_at_first)
        self._follow(client, request, 0)
        self.start_next(now)

    def attach(self, client: bytes, attach: c.Attach, now: float) -> None:
        """Raises RequestError when there is no such request or position."""
        request = self._known(attach.request)
        if not 0 <= attach.position <= len(request.log):
            raise RequestError("bad_request", f"position {attach.position}: the answer has {len(request.log)} tokens")
        ahead = 0 if request.state != "queued" else self._ahead(request)
        self._audience.reply(client, c.Accepted(attach.ref, request.id, ahead))
        self._follow(client, request, attach.position)

    def cancel(self, client: bytes, cancel: c.Cancel, now: float) -> None:
        """Raises RequestError when there is no such request. One that has ended stays as it ended."""
        request = self._known(cancel.request)
        self._cancel(request, now)
        self._audience.reply(client, c.Done(cancel.ref))

    def unfollow(self, client: bytes, request: Request, now: float) -> None:
        """The client has all of it, or is gone: nobody left means cancelled, unless it is to be kept."""
        request.followers.discard(client)
        if request.followers or request.id not in self.requests:
            return
        if request.submit.keep_s > 0:
            request.keep_until = now + request.submit.keep_s
            for oldest in surplus(self.requests.values()):
                self.requests.pop(oldest.id, None)
        else:
            self._drop(request, now)

    def engine_is_ready(self, now: float, context: int | None = None) -> None:
        """`context`: of its model, in tokens, where it said so; no answer may be longer."""
        if context is not None:
            self.limits = self.limits.within(context)
        self._engine_ready = True
        self.start_next(now)

    def engine_is_gone(self, why: str, now: float) -> None:
        """Dead and reaped. Its request goes back to the head of the queue, or ends if it keeps killing engines."""
        self._engine_ready = False
        self.engine_has = None
        request, self.running = self.running, None
        if request is None:
            return
        request.deaths += 1
        request.deaths_in_a_row += 1
        request.state = "queued"
        if request.cancelled:
            self._finish_cancelled(request, now)
        elif request.deaths_in_a_row >= DEATHS_ON_ONE_REQUEST:
            times = request.deaths_in_a_row
            self._fail(request, "environment", f"the engine died {times} times on this request; last: {why}", now)
        else:
            request.progress = c.Progress(request.id, "recovering", 0, max(1, len(request.log)))
            self.queue.put_back(request.owner, request)

    def engine_says(self, message: e.Progress | e.Tokens | e.Finished | e.Failed, now: float) -> None:
        """A message about a request; one about another than the engine has is counted and dropped."""
        if message.request is None or message.request != self.engine_has:
            self.counts["stray"] += 1
            return
        if isinstance(message, e.Finished | e.Failed):
            self.engine_has = None
        request = self.running
        if request is not None and request.id == message.request:
            self._advance(request, message, now)
        self.start_next(now)

    def start_next(self, now: float) -> None:
        """Give the engine the next request if it can take one."""
        if not self._engine_ready or self.engine_has is not None:
            return
        request = self.queue.take()
        if request is None:
            return
        request.state = "running"
        request.started_at = now if request.started_at is None else request.started_at
        self.running = request
        self.engine_has = request.id
        self._to_engine(request.start())
        self._tell_positions()

    def expire(self, now: float) -> None:
        """Drop kept requests whose time is over."""
        for request in [r for r in self.requests.values() if r.keep_until is not None and r.keep_until <= now]:
            self._drop(request, now)

    def close_queue(self, refusal: RequestError, now: float) -> None:
        """Take no more, and fail those that wait; the running one may finish."""
        self.refusal = refusal
        while (request := self.queue.take()) is not None:
            self._fail(request, refusal.kind, str(refusal), now)

    def fail_all(self, kind: RequestKind, text: str, now: float) -> None:
        """End every request that has not ended."""
        while (request := self.queue.take()) is not None:
            self._fail(request, kind, text, now)
        if self.running is not None:
            running = self.running
            if self.engine_has == running.id:
                self._to_engine(e.Cancel(running.id))
            self._fail(running, kind, text, now)

    def _advance(self, request: Request, message: e.Progress | e.Tokens | e.Finished | e.Failed, now: float) -> None:
        match message:
            case e.Progress():
                phase = "recovering" if request.deaths else "prefill"
                request.progress = c.Progress(request.id, phase, message.done, message.total)  # type: ignore[arg-type]
            case e.Tokens():
                try:
                    request.log.append(Run(message.seq, message.ids, message.text, message.logprobs))
                except ValueError as error:
                    self._to_engine(e.Cancel(request.id))
                    self._fail(request, "internal", f"the engine lost or repeated tokens: {error}", now)
                    return
                request.progress = None
                request.deaths_in_a_row = 0
            case e.Finished():
                self._finish(request, request.finished(message, now), now)
            case e.Failed():
                self._fail(request, message.kind, message.text, now)
            case _:
                assert_never(message)

    def _cancel(self, request: Request, now: float) -> None:
        if request.state == "ended" or request.cancelled:
            return
        request.cancelled = True
        if request.state == "running":
            self._to_engine(e.Cancel(request.id))
        else:
            self.queue.remove(request.owner, request)
            self._finish_cancelled(request, now)

    def _finish_cancelled(self, request: Request, now: float) -> None:
        message = e.Finished(request.id, "cancelled", c.Usage(0, 0), {})
        self._finish(request, request.finished(message, now), now)

    def _fail(self, request: Request, kind: RequestKind, text: str, now: float) -> None:
        self._finish(request, c.Failed(kind, text, request=request.id), now)

    def _finish(self, request: Request, terminal: c.Finished | c.Failed, now: float) -> None:
        if request.state == "ended":
            raise DaemonBug(f"request {request.id.hex()} ended twice")
        request.state, request.terminal = "ended", terminal
        if self.running is request:
            self.running = None
        how = f"failed {terminal.kind}: {terminal.text}" if isinstance(terminal, c.Failed) else terminal.reason
        took_s = now - request.submitted_at
        log.info("request=%s ended tokens=%d s=%.3f: %s", request.id.hex(), len(request.log), took_s, how)
        if isinstance(terminal, c.Failed):
            self.counts["refused" if terminal.kind in USER_KINDS else "failed"] += 1
        else:
            self.counts["cancelled" if terminal.reason == "cancelled" else "finished"] += 1
        if not request.followers and request.keep_until is None:
            self.requests.pop(request.id, None)

    def _known(self, request: bytes) -> Request:
        found = self.requests.get(request)
        if found is None:
            raise RequestError("gone", "there is no such request: it ended, or was not kept")
        return found

    def _follow(self, client: bytes, request: Request, position: int) -> None:
        request.followers.add(client)
        request.keep_until = None
        self._audience.follow(client, Stream(request, position))

    def _drop(self, request: Request, now: float) -> None:
        """Nobody wants it any more: cancel what runs, forget what ended."""
        request.keep_until = None
        if request.state == "ended":
            self.requests.pop(request.id, None)
        else:
            self._cancel(request, now)

    def _ahead(self, request: Request) -> int:
        return self.queue.order().index(request) + (1 if self.running is not None else 0)

    def _tell_positions(self) -> None:
        for ahead, request in enumerate(self.queue.order(), start=1):
            total = max(request.ahead_at_first, ahead)
            if request.progress is None or request.progress.phase == "queued":
                request.progress = c.Progress(request.id, "queued", total - ahead, total)
