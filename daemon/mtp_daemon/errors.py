"""What can go wrong in the front and the `mtpd` command, as one tree of three kinds.

    DaemonError
    ├── UserError            the user's mistake; the text says what to do instead                      exit code 2
    ├── RequestError         a client's message is answered by `Failed`; its kind says whose fault     never fatal
    ├── AlreadyRunning       another daemon holds the run directory                                    exit code 3
    ├── EnvironmentFailure   disk, memory, a child process that cannot be kept alive                   exit code 4
    ├── NotServing           `mtpd status`, `mtpd stop`: no daemon there                               exit code 5
    └── DaemonBug            ours                                                                      exit code 1

A service manager restarts neither after 2 nor after 3: starting again would change nothing.
"""

from typing import Literal

RequestKind = Literal["bad_request", "too_long", "unsupported", "busy", "environment", "gone", "shutdown", "internal"]

# Of those, what the user can mend.
USER_KINDS = frozenset({"bad_request", "too_long", "unsupported", "gone"})


class DaemonError(Exception):
    """Base; the text is one line for a person."""

    exit_code = 1


class UserError(DaemonError):
    """Asked for something that cannot be."""

    exit_code = 2


class RequestError(DaemonError):
    """A client's message is refused; `kind` is the wire's error kind, which says whose fault it is."""

    def __init__(self, kind: RequestKind, text: str) -> None:
        super().__init__(text)
        self.kind: RequestKind = kind


class AlreadyRunning(DaemonError):
    """Another daemon serves this run directory; `pid` names it."""

    exit_code = 3

    def __init__(self, pid: int | None, where: str) -> None:
        super().__init__(f"already running (pid {pid if pid is not None else 'unknown'}) in {where}")
        self.pid = pid


class EnvironmentFailure(DaemonError):
    """The machine or a child process failed us."""

    exit_code = 4


class NotServing(DaemonError):
    """No daemon serves the run directory."""

    exit_code = 5


class DaemonBug(DaemonError):
    """A broken assumption of our own."""
