"""Keeps one child alive: spawn, watch, kill when it hangs, reap, start again; and at the end, stop it step by step."""

import logging
import signal
from collections.abc import Callable
from typing import Literal, Protocol

from mtp_daemon.front.child_log import ChildLog
from mtp_daemon.front.child_process import ChildProcess
from mtp_daemon.front.liveness import Restarts, Vigil

Role = Literal["loader", "engine"]
State = Literal["down", "starting", "ready", "stopping", "given up"]

# From SIGTERM to SIGKILL.
_TERM_S = 2.0
# A child that said that it cannot go on leaves by itself within this.
_LEAVE_S = 5.0
# From a death to our answer to it: what the child said last may still be on its way through the socket.
_LAST_WORDS_S = 0.03

log = logging.getLogger("mtpd")


class Family(Protocol):
    """Hears of a child's life and death; the death after it is reaped."""

    def spawned(self, child: "Supervisor") -> None: ...

    def died(self, child: "Supervisor", epoch: int, why: str) -> None: ...

    def given_up(self, child: "Supervisor") -> None: ...


class Supervisor:
    """Owner of one child's process and epoch. Epochs rise with each start and name the process on the wire."""

    def __init__(
        self,
        role: Role,
        command: Callable[[int], list[str]],
        log_file: ChildLog,
        vigil: Callable[[float], Vigil],
        restarts: Restarts,
        family: Family,
    ) -> None:
        self.role: Role = role
        self.state: State = "down"
        self.epoch = 0
        self.process: ChildProcess | None = None
        self.restarts = restarts
        self.last_error = ""
        self.facts: dict[str, object] = {}
        self.fatal = False
        self.user_fault = False
        self.log = log_file
        self._command = command
        self._vigil_of = vigil
        self._family = family
        self.vigil = vigil(0.0)
        self._ready_at: float | None = None
        self._start_at: float | None = None
        self._exit_seen_at: float | None = None
        # Why it dies, once that is known better than its exit code tells.
        self._reason: str | None = None
        self._ladder: list[tuple[float, signal.Signals]] = []

    @property
    def alive(self) -> bool:
        return self.process is not None

    @property
    def exit_seen(self) -> bool:
        """Its death is known and its last words are being waited for."""
        return self._exit_seen_at is not None

    @property
    def identity(self) -> bytes:
        """Its name on the children's socket."""
        return f"{self.role}-{self.epoch}".encode()

    def start(self, now: float) -> None:
        """Spawn it now; a spawn that fails counts as a death."""
        self._start_at = None
        self.epoch += 1
        self.log.begin(f"{self.role} {self.epoch}")
        self.vigil = self._vigil_of(now)
        self._ready_at, self._exit_seen_at, self._reason = None, None, None
        self.facts = {}
        self.state = "starting"
        try:
            self.process = ChildProcess(self._command(self.epoch), self.log)
        except OSError as error:
            self._after_death(f"cannot be started: {error}", now)
            return
        log.info("%s started epoch=%d pid=%d", self.role, self.epoch, self.process.pid)
        self._family.spawned(self)

    def is_ready(self, now: float) -> None:
        self._ready_at = now
        if self.state == "starting":
            self.state = "ready"

    def note_error(self, text: str, now: float, *, fatal: bool, user: bool = False) -> None:
        """The child's own account of why it cannot go on. `fatal`: starting it again would change nothing; `user`: it
        is the user's mistake.
        """
        self.fatal = self.fatal or fatal
        self.user_fault = user
        self._reason = text
        self._ladder = [(now + _LEAVE_S, signal.SIGKILL)]

    def stop(self, deadline_s: float, now: float) -> None:
        """It has been told to leave; if it does not, SIGTERM, then SIGKILL. Nothing happens when it is down."""
        self._start_at = None
        if self.process is None:
            self.state = "down"
            return
        self.state = "stopping"
        self._ladder = [(now + deadline_s, signal.SIGTERM), (now + deadline_s + _TERM_S, signal.SIGKILL)]

    def kill(self, why: str) -> None:
        if self.process is not None:
            log.warning("%s killed pid=%d: %s", self.role, self.process.pid, why)
            self._reason = why
            self.process.signal(signal.SIGKILL)

    def end(self) -> None:
        """At the very end, or on the way out of an error: dead and reaped when this returns."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            self.process.wait()
            self.process.close()
            self.process = None

    def try_again(self, now: float) -> None:
        """After giving up: once more, from the first back-off on."""
        if self.state == "given up":
            self.restarts.in_a_row = 0
            self.fatal = False
            self.start(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest, apart from its regular look."""
        times = [t for t, _ in self._ladder]
        times += [self._start_at] if self._start_at is not None else []
        times += [self._exit_seen_at + _LAST_WORDS_S] if self._exit_seen_at is not None else []
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Look after the child: a death, a hang, a step of the ladder, a start that is due."""
        if self.process is None:
            if self._start_at is not None and now >= self._start_at:
                self.start(now)
            return
        code = self.process.exit_code()
        if code is not None:
            if self._exit_seen_at is None:
                self._exit_seen_at = now
            elif now >= self._exit_seen_at + _LAST_WORDS_S:
                self._buried(code, now)
            return
        while self._ladder and now >= self._ladder[0][0]:
            self.process.signal(self._ladder.pop(0)[1])
        if self.state != "stopping" and self._reason is None and (why := self.vigil.verdict(now)):
            self.kill(why)

    def _buried(self, code: int, now: float) -> None:
        assert self.process is not None
        self.process.close()
        self.process = None
        self._ladder.clear()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = self.log.last_error
        self._after_death(self._reason or (f"{how}: {said}" if said else how), now)

    def _after_death(self, why: str, now: float) -> None:
        was_stopping = self.state == "stopping"
        epoch, self._exit_seen_at = self.epoch, None
        lived = now - self._ready_at if self._ready_at is not None else 0.0
        self.state = "down"
        if not was_stopping:
            self.last_error = why
            log.warning("%s died epoch=%d: %s", self.role, epoch, why)
        self._family.died(self, epoch, self.last_error or why)
        if was_stopping:
            return
        delay = None if self.fatal else self.restarts.delay(lived)
        if delay is None:
            self.state = "given up"
            log.error("%s is not started again: %s", self.role, self.last_error)
            self._family.given_up(self)
        else:
            self._start_at = now + delay
