"""One request's events, in order."""

import time
from collections.abc import Iterator
from typing import assert_never

from mtp_client.errors import ClientError, from_failed
from mtp_client.mailbox import Event, Mailbox
from mtp_protocol.client_messages import Accepted, Cancel, Failed, Finished, Progress, Tokens

_CANCEL_S = 2.0


class Answer(Iterator[Event]):
    """The events of one request: Accepted first, Finished last. Leaving it early cancels the request.

    `request` is its id (for `attach`) once accepted; `position` the number of tokens seen, where `attach` goes on.
    Iterating raises ClientError when the request fails.
    """

    def __init__(self, mailbox: Mailbox, ref: int) -> None:
        self._mailbox = mailbox
        self._ref = ref
        self._ended = False
        self.request: bytes | None = None
        self.position = 0

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        event = self._mailbox.next_event(self._ref, self.request, None)
        assert event is not None  # no deadline was given
        return self._take(event)

    def _take(self, event: Event | Failed) -> Event:
        match event:
            case Accepted():
                self.request = event.request
            case Tokens():
                self.position = event.seq + len(event.ids)
            case Failed():
                self._ended = True
                raise from_failed(event)
            case Finished():
                self._ended = True
            case Progress():
                pass
            case _:
                assert_never(event)
        return event

    def cancel(self, wait_s: float = _CANCEL_S) -> Finished | None:
        """Ask the service to stop, and wait for its last word; None when none came in time."""
        deadline = time.monotonic() + wait_s
        sent = False
        while not self._ended:
            if self.request is not None and not sent:
                self._mailbox.send(Cancel(self._mailbox.next_ref(), self.request))
                sent = True
            event = self._mailbox.next_event(self._ref, self.request, deadline)
            if event is None:
                break
            if isinstance(self._take(event), Finished):
                assert isinstance(event, Finished)
                return event
        self._ended = True
        return None

    def close(self) -> None:
        """Cancel the request unless it has ended; never raises."""
        if self._ended or self._mailbox.closed:
            return
        try:
            self.cancel()
        except ClientError:
            self._ended = True

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended and not self._mailbox.closed and self.request is not None:
            self._mailbox.abandon(self.request)
