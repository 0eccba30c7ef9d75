"""Asking the loader for experts, giving slots back, and outliving the loader."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import numpy as np

from mtp_daemon.engine.demand import Demand
from mtp_daemon.engine.errors import EngineBug, EngineError, EnvironmentFailed, ExpertUnreadable, LoaderTimeout
from mtp_daemon.engine.link_limits import Limits
from mtp_daemon.engine.loader_life import LoaderDead, LoaderUp
from mtp_daemon.engine.loader_socket import LoaderSocket
from mtp_daemon.engine.residency import ABSENT, Residency
from mtp_daemon.engine.routing import Ran
from mtp_daemon.engine.stream_stats import StreamStats
from mtp_protocol.expert_messages import (
    Bye,
    Fed,
    Filled,
    FillFailed,
    Hello,
    Hint,
    Hinting,
    Limit,
    Need,
    NotWelcome,
    Recall,
    Released,
    Resident,
    ToEngine,
    Used,
    Welcome,
)


class ExpertLink:
    """Owned by the MLX thread. `finish` waits for every graph that was built: called before the map is dropped."""

    def __init__(
        self,
        socket: LoaderSocket,
        residency: Residency,
        hello: Hello,
        finish: Callable[[], None],
        stats: StreamStats,
        limits: Limits,
    ) -> None:
        self._socket = socket
        self._residency = residency
        self._hello = hello
        self._finish = finish
        self._stats = stats
        self._limits = limits
        # What was told to a loader that died is no business of its successor's.
        self.on_rejoin: Callable[[], None] = lambda: None
        self.on_arrived: Callable[[Sequence[Resident], bool], None] = lambda experts, asked: None
        self.hinting = True  # the loader has use for guesses
        self._ticket = 0
        self._demand: Demand | None = None
        self._successor: LoaderUp | None = None  # a loader that we have not said Hello to

    @property
    def alive(self) -> bool:
        return self._socket.loader_epoch is not None and self._successor is None

    def join(self) -> None:
        """Wait for a loader and say Hello. Raises LoaderTimeout."""
        until = time.monotonic() + self._limits.loader_s
        while not self.alive:
            if self._successor is None:
                self._handle(self._receive(until, "a loader"))
            self._rejoin()

    def poll(self) -> None:
        """Take in what has arrived and answer what can be answered. Waits for nothing but a new loader's Welcome."""
        while (happened := self._socket.receive()) is not None:
            self._handle(happened)
        self._rejoin()
        self.release()

    def wait(self, fd: int, timeout_s: float) -> None:
        """Until `poll` may have something to do, or `fd` is readable."""
        self._socket.wait(fd, timeout_s)

    def release(self) -> None:
        """Answer the recalls of slots that no graph reads."""
        for bank, slots in self._residency.release():
            self._socket.send(Released(bank, slots))

    def send(self, message: Fed | Hint | Used) -> None:
        """Lost while there is no loader, which costs knowledge and nothing else."""
        self._socket.send(message)

    def leave(self) -> None:
        self._socket.send(Bye())
        self._socket.disconnect()

    # -- demands ---------------------------------------------------------------------------------------------------

    def ask(self, layer: int, experts: Sequence[int], events: tuple[Ran, ...] = ()) -> Demand:
        """Demand experts of one layer; those that arrived since the caller looked are not asked for.

        Slots that graphs read now (the caller marked this wave's hits) are held: the loader takes none of them.
        """
        if self._demand is not None and self._demand.missing and not self._demand.unfit:
            raise EngineBug(f"layer {layer} asks while layer {self._demand.layer} still waits")
        demand = self._demand = Demand(layer, set(experts), capacity=self._residency.capacity(layer))
        self._note_arrivals(demand, experts)
        if demand.missing:
            self._stats.demands += 1
            self._send_need(demand, events)
        return demand

    def collect(self, demand: Demand) -> list[int]:
        """Wait for experts of the demand: those that have arrived, at least one, marked as read; none when it is over
        (what is `missing` then did not fit a pool that became smaller).

        Raises ExpertUnreadable, LoaderTimeout (naming what was waited for), EngineStopping.
        """
        began = time.monotonic()
        try:
            if demand.waits:
                self._wait(demand)
            while (happened := self._socket.receive()) is not None:  # what else is there is computed in the same go
                self._handle(happened)
        except EngineError:
            demand.missing.clear()  # nobody waits any more
            raise
        self.release()
        arrived, demand.arrived = demand.arrived, []
        self._stats.wait_s += time.monotonic() - began
        return arrived

    def _wait(self, demand: Demand) -> None:
        """Until something of the demand has arrived."""
        until = time.monotonic() + self._limits.deadline_s
        retry = time.monotonic() + self._limits.retry_s
        while demand.waits:
            if not self.alive:  # it may have died before this wait, or have been seen to die while arrivals were taken
                self._await_successor(demand)
                until = time.monotonic() + self._limits.deadline_s
                retry = time.monotonic() + self._limits.retry_s
                continue
            happened = self._socket.receive(max(0.0, min(until, retry) - time.monotonic()))
            if happened is not None:
                self._handle(happened)
                self.release()
            elif time.monotonic() >= until:
                raise LoaderTimeout(f"the loader did not deliver {demand} within {self._limits.deadline_s:g} s")
            elif time.monotonic() >= retry:
                self._stats.retries += 1
                self._send_need(demand)
                retry = time.monotonic() + self._limits.retry_s

    def _send_need(self, demand: Demand, events: tuple[Ran, ...] = ()) -> None:
        self.release()  # the loader may be waiting for these very slots; nothing it says would wake us for them
        self._ticket += 1
        demand.tickets.add(self._ticket)
        held = self._residency.held(demand.layer)
        self._socket.send(Need(self._ticket, demand.layer, tuple(sorted(demand.missing)), held, events))

    def _note_arrivals(self, demand: Demand, experts: Iterable[int]) -> None:
        """Experts of the demand that are in the map are marked as read at once, before any recall is answered."""
        table = self._residency.table(demand.layer)
        here = [e for e in experts if e in demand.missing and table[e] != ABSENT]
        if here:
            demand.missing.difference_update(here)
            demand.arrived += here
            self._residency.read(demand.layer, table[np.array(here)])

    # -- what happens ----------------------------------------------------------------------------------------------

    def _handle(self, happened: ToEngine | LoaderUp | LoaderDead) -> None:
        match happened:
            case Filled(ticket, experts):
                self.on_arrived(self._residency.fill(experts), ticket is not None)
                if self._demand is not None:
                    self._note_arrivals(self._demand, [r.expert for r in experts if r.layer == self._demand.layer])
            case Recall(bank, slots):
                if unknown := self._residency.recall(bank, slots):
                    self._socket.send(Released(bank, tuple(unknown)))
            case FillFailed(ticket, layer, expert, reason):
                if (demand := self._demand) is not None and demand.missing and ticket in demand.tickets:
                    if demand.capacity == self._residency.capacity(demand.layer):
                        raise ExpertUnreadable(layer, expert, reason)
                    demand.unfit = True
            case Limit(slots):
                self._residency.limit(slots)
                if (demand := self._demand) is not None and demand.missing:
                    wanted = len(self._residency.held(demand.layer)) + len(demand.missing)
                    # For good: whoever collects may have given it up already, and a pool that grew does not undo that.
                    demand.unfit |= wanted > self._residency.capacity(demand.layer)
            case Hinting(wanted):
                self.hinting = wanted
            case Welcome() | NotWelcome():
                raise EngineBug("the loader answered an engine that had not said Hello")
            case LoaderUp():
                self._successor = happened
            case LoaderDead(epoch):
                if epoch == self._socket.loader_epoch:
                    self._socket.disconnect()
                if self._successor is not None and epoch == self._successor.epoch:
                    self._successor = None
            case _:
                assert_never(happened)

    def _receive(self, until: float, what: str) -> ToEngine | LoaderUp | LoaderDead:
        happened = self._socket.receive(max(0.0, until - time.monotonic()))
        if happened is None:
            raise LoaderTimeout(f"waited {self._limits.loader_s:g} s for {what}")
        return happened

    def _await_successor(self, demand: Demand) -> None:
        """The loader died while we wait: go on with the next one and ask it for what is still missing."""
        until = time.monotonic() + self._limits.loader_s
        while not self.alive:
            if self._successor is None:
                self._handle(self._receive(until, f"a new loader, to deliver {demand}"))
            self._rejoin()
        self._note_arrivals(demand, sorted(demand.missing))
        if demand.missing:
            self._send_need(demand)

    def _rejoin(self) -> None:
        """Say Hello to a loader that we have not met. It writes no slot before that, so first every graph ends."""
        while (loader := self._successor) is not None:
            self._finish()
            self.on_rejoin()
            self._residency.finished()
            self._residency.drop()
            self._socket.connect(loader)
            self._successor = None
            self._socket.send(self._hello)
            self._stats.rejoins += 1
            until = time.monotonic() + self._limits.loader_s
            while self._successor is None:
                happened = self._receive(until, "the loader's Welcome")
                if isinstance(happened, Welcome):
                    self.hinting = True
                    self._residency.fill(happened.resident)
                    break
                if isinstance(happened, NotWelcome):
                    raise EnvironmentFailed(happened.reason)
                self._handle(happened)  # a death or a successor; anything else before Welcome is a bug that it raises
                if not self.alive and self._successor is None:
                    return  # it died before it answered: whoever needs experts waits for the next
