"""What can go wrong for a client.

ClientError
├── RequestRefused     the user's mistake: the service refused the request and says why
├── ServiceError       the environment's failure: the service could not finish the request
│   ├── NotRunning     no daemon serves this run directory
│   └── ConnectionLost the daemon died, or stopped answering, while we waited
└── ServiceBug         a bug of ours: the service answered something it never should
"""

from mtp_protocol.client_messages import Failed

_USER_KINDS = frozenset({"bad_request", "too_long", "unsupported", "gone"})
_BUG_KINDS = frozenset({"internal", "protocol"})


class ClientError(Exception):
    """Root of the client's errors; `kind` is the wire's error kind or a word of the client's own."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class RequestRefused(ClientError):
    """The request was wrong: see the text."""


class ServiceError(ClientError):
    """The request was fine, the service could not do it."""


class NotRunning(ServiceError):
    """No daemon serves this run directory."""

    def __init__(self, text: str) -> None:
        super().__init__("not_running", text)


class ConnectionLost(ServiceError):
    """The daemon died or fell silent while an answer was awaited."""

    def __init__(self, text: str) -> None:
        super().__init__("connection_lost", text)


class ServiceBug(ClientError):
    """The service reports a bug of its own, or broke the protocol."""


def from_failed(failed: Failed) -> ClientError:
    """The exception that a `Failed` message stands for."""
    if failed.kind in _USER_KINDS:
        return RequestRefused(failed.kind, failed.text)
    if failed.kind in _BUG_KINDS:
        return ServiceBug(failed.kind, failed.text)
    return ServiceError(failed.kind, failed.text)
