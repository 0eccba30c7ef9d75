"""The front's one thread: a poller over both sockets, both children and the signals, and what each of them sets off."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import zmq

from mtp_daemon.config import Settings
from mtp_daemon.errors import DaemonBug, EnvironmentFailure, RequestError, UserError
from mtp_daemon.front.announce import announcement
from mtp_daemon.front.child_fds import ChildFds
from mtp_daemon.front.child_log import logs_in
from mtp_daemon.front.children_port import ChildrenPort
from mtp_daemon.front.client_port import ClientPort
from mtp_daemon.front.clients import Clients
from mtp_daemon.front.clock import RunningClock
from mtp_daemon.front.desk import Desk
from mtp_daemon.front.errands import Errands
from mtp_daemon.front.integrity import check
from mtp_daemon.front.limits import limits_of
from mtp_daemon.front.lineup import Lineup
from mtp_daemon.front.listen import listener_of
from mtp_daemon.front.metrics_feed import MetricsFeed
from mtp_daemon.front.pool_budget import PoolBudget
from mtp_daemon.front.pool_size import PoolSize
from mtp_daemon.front.pressure_source import pressure_source
from mtp_daemon.front.recruit import Program, Recruiter, python_module
from mtp_daemon.front.run_lock import RunLock
from mtp_daemon.front.sessions import Sessions
from mtp_daemon.front.signals import StopSignals
from mtp_daemon.front.status import service_status, shown
from mtp_daemon.front.warm import WarmStart
from mtp_daemon.front.watchdog import Watchdog
from mtp_protocol.housekeeping import Housekeeping
from mtp_protocol.run_directory import children_address, client_address

log = logging.getLogger("mtpd")

Phase = Literal["starting", "serving", "draining", "stopping"]

# The longest wait: deaths and messages wake the poller; beats, kept requests and live clients can wait this long.
_LOOK_S = 0.2
# Taken a turn: one side that floods must not starve the other. One message of a client may be 16 MiB.
_CHILD_MESSAGES, _CLIENTS_S = 256, 0.02
# For the last messages to reach clients that read, and for the children to leave by themselves.
_GOODBYE_S, _CHILDREN_STOP_S = 1.0, 3.0


class Front:
    """The service in one run directory. `run` returns when it has stopped; all that it started is gone by then."""

    def __init__(
        self,
        settings: Settings,
        model: Path,
        lock: RunLock,
        signals: StopSignals,
        say: Callable[[str], None],
        program: Program = python_module,
    ) -> None:
        self._settings, self._model, self._lock, self._signals, self._say = settings, model, lock, signals, say
        self._phase: Phase = "starting"
        self._clock = RunningClock()
        self._until = self._look_at = 0.0
        self._stops_seen = 0
        self._retry_s: float | None = None
        self._broken: str | None = None
        logs = logs_in(Path(settings.log_dir) if settings.log_dir else lock.run_directory / "logs")
        listener = listener_of(settings)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._port = ClientPort(self._context, listener)
        self._children = ChildrenPort(self._context, children_address(lock.run_directory))
        self._clients = Clients(self._port.send, settings.max_clients, lambda *gone: self._sessions.unfollow(*gone))
        self._sessions = Sessions(limits_of(settings), self._clients, lambda message: self._lineup.tell_engine(message))
        self._errands = Errands(self._clients, lambda message: self._lineup.tell_loader(message))
        budget = PoolBudget(settings, model)
        recruiter = Recruiter(settings, model, lock.sockets, logs, program)
        self._lineup = Lineup(recruiter, self._children, self._sessions, self._errands, budget.layout)
        self._pool_size = PoolSize(self._lineup, pressure_source(settings.pressure))
        self._desk = Desk(
            shown(model), self._clients, self._sessions, self._lineup, self._errands,
            self._status, self._drain, lambda pool, geometry: budget.nbytes(pool, geometry, self._pool_size.held_bytes),
            self._pool_size.want,
        )  # fmt: skip
        self._watchdog, self._warm = Watchdog(), WarmStart(say)
        self._metrics = MetricsFeed(settings.metrics, self._status, self._lineup.totals)
        self._poller = zmq.Poller()
        for source in (*self._port.sources, self._children.socket, signals.fd):
            self._poller.register(source, zmq.POLLIN)
        self._child_fds = ChildFds(self._poller)
        self._house = Housekeeping(self._clock.now)

    def run(self) -> None:
        """Until a signal or a client stops it. Raises DaemonError when it cannot start."""
        try:
            self._lineup.start(self._clock.now)
            while not (self._phase == "stopping" and not any(c.alive for c in self._lineup.children)):
                self._turn()
        finally:
            self._bury_all()

    # --- a turn of the loop ---

    def _turn(self) -> None:
        """What costs something is done when an event or a deadline asks for it: tokens pass through in between."""
        self._child_fds.watch(self._lineup.children)
        wait_s = self._wait_s()
        events = dict(self._poller.poll(int(wait_s * 1000) + 1))
        now = self._clock.tick(wait_s)
        self._lineup.now = now
        if self._signals.fd in events:
            self._signals.drain()
        if self._children.socket in events:
            self._lineup.receive(_CHILD_MESSAGES)
            # A child that speaks has connected: what waited for that can go.
            self._children.flush()
        if any(source in events for source in self._port.sources):
            self._read_clients(now)
        look = now >= self._look_at
        if look or self._child_fds.woke(events) or self._wait_s() == 0.0:
            self._look_after_children(now)
        if look:
            self._look_at = now + _LOOK_S
            self._clients.keep_alive(now)
            self._sessions.expire(now)
            self._errands.expire(now)
            self._house.look(now)
            self._watchdog.look(self._lineup, busy=self._sessions.busy, serving=self._phase == "serving")
            self._pool_size.look(now)
            self._metrics.look(now)
            self._warm.look(self._lineup.loader.facts)
            self._check()
        self._retry_s = self._clients.pump(now)
        if look or self._phase != "serving" or self._signals.count > self._stops_seen:
            self._move_on(now)

    def _look_after_children(self, now: float) -> None:
        for child in self._lineup.children:
            if child.process is not None:
                child.process.drain()
        self._lineup.tick(now)
        self._children.flush()

    def _check(self) -> None:
        """A broken invariant is a bug of ours: said aloud and kept for status, but no reason to end every answer."""
        if self._sessions.busy or self._broken is not None:
            return
        try:
            check(self._sessions)
        except DaemonBug as error:
            self._broken = str(error)
            log.error("broken invariant: %s", error)

    def _wait_s(self) -> float:
        deadlines = [child.next_deadline() for child in self._lineup.children]
        waits = [t - self._clock.now for t in deadlines if t is not None]
        waits += [_LOOK_S] + ([self._retry_s] if self._retry_s is not None else [])
        return max(0.0, min(waits))

    def _read_clients(self, now: float) -> None:
        until = time.monotonic() + _CLIENTS_S
        while time.monotonic() < until and (received := self._port.receive()) is not None:
            self._desk.take(*received, now)

    # --- phases ---

    def _move_on(self, now: float) -> None:
        if self._signals.count > self._stops_seen:
            again, self._stops_seen = self._phase in ("draining", "stopping"), self._signals.count
            log.info("asked to stop by a signal%s", ", again: now" if again else "")
            if again:
                self._stop_children(0.0, now)
                for child in self._lineup.children:
                    child.kill("stopped at once")
            else:
                self._drain(self._settings.stop_deadline_s)
        if self._phase == "starting":
            self._serve_when_ready()
        if self._phase == "draining":
            self._drained(now)

    def _serve_when_ready(self) -> None:
        for child in self._lineup.children:
            if child.state == "given up" and child.user_fault:
                raise UserError(child.last_error)
            if child.state == "given up":
                raise EnvironmentFailure(f"the {child.role} cannot start: {child.last_error}")
        if not self._lineup.ready:
            return
        geometry, layout = self._lineup.geometry, self._lineup.layout
        assert geometry is not None and layout is not None  # the loader is ready, so it has told and got both
        facts, loader_facts = self._lineup.facts, self._lineup.loader.facts
        self._say(announcement(self._model, geometry, layout, facts, self._settings.context, loader_facts))
        self._port.bind(client_address(self._lock.run_directory))
        self._lineup.served = True
        self._phase = "serving"
        self._watchdog.ready(f"serving {self._model.name}")
        self._say(f'ready: mtp-client --run-dir {shown(self._lock.run_directory)} "your prompt"')

    def _drain(self, deadline_s: float) -> None:
        """Take nothing new; the running answer may end until the deadline."""
        now = self._clock.now
        if self._phase == "starting":
            self._stop_children(_CHILDREN_STOP_S, now)
        elif self._phase == "serving":
            self._phase = "draining"
            self._until = now + deadline_s
            self._watchdog.stopping()
            self._sessions.close_queue(RequestError("shutdown", "the service is stopping"), now)

    def _drained(self, now: float) -> None:
        if self._sessions.running is not None and now < self._until:
            return
        self._sessions.fail_all("shutdown", "the service is stopping", now)
        self._retry_s = self._clients.pump(now)
        if not self._clients.unsent or now >= self._until + _GOODBYE_S:
            self._stop_children(_CHILDREN_STOP_S, now)

    def _stop_children(self, deadline_s: float, now: float) -> None:
        self._phase = "stopping"
        self._lineup.stop(deadline_s, now)

    def _bury_all(self) -> None:
        """However we leave: no child, no socket file, no region stays behind."""
        for child in self._lineup.children:
            child.end()
        self._lineup.close()
        self._metrics.close()
        self._clients.pump(self._clock.now)
        self._port.close()
        self._children.close()
        self._context.term()

    def _status(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "pid": os.getpid(),
            "model": shown(self._model),
            "run_dir": shown(self._lock.run_directory),
            "tcp": None if (curve := self._port.curve) is None else {"at": curve.address, "refused": curve.refused},
            "running_s": round(self._clock.now, 3),
            "stopped_s": round(self._clock.stopped_s, 3),
            "pressure": {"level": self._pool_size.level.name.lower(), "slots": self._pool_size.slots},
            "metrics": self._metrics.at,
            "bad_messages": self._desk.bad_messages,
            "broken_invariant": self._broken,
            **service_status(self._lineup, self._sessions, self._clients),
        }
