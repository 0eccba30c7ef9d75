"""The two children together: who is told what when, and the pool's region, which outlives both.

Start: the loader says Geometry → the pool is sized and its region made → both get it → the loader is Ready at an
address → each is told of the other → the engine is Ready. After a death the same steps bring the one that is missing
back in line; the region stays, so what is resident stays.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from typing import assert_never

from mtp_daemon.errors import EnvironmentFailure, RequestError
from mtp_daemon.front.children_port import ChildrenPort
from mtp_daemon.front.errands import Errands
from mtp_daemon.front.recruit import Recruiter
from mtp_daemon.front.sessions import Sessions
from mtp_daemon.front.supervise import Supervisor
from mtp_daemon.front.totals import Totals
from mtp_protocol import engine_messages as e
from mtp_protocol import loader_messages as ld
from mtp_protocol.errors import ProtocolError
from mtp_protocol.geometry import Geometry, PoolLayout
from mtp_protocol.lifeline import create_region

log = logging.getLogger("mtpd")

# After giving a child up, a client's request is worth a new attempt once so long has passed.
TRY_AGAIN_S = 30.0


class Lineup:
    """Owner of both supervisors, of the geometry and of the region's descriptor."""

    def __init__(
        self,
        recruiter: Recruiter,
        port: ChildrenPort,
        sessions: Sessions,
        errands: Errands,
        size_pool: Callable[[Geometry], PoolLayout],
    ) -> None:
        self.geometry: Geometry | None = None
        self.layout: PoolLayout | None = None
        self.facts: dict[str, object] = {}
        self.served = False
        self.bad_messages = 0
        self.totals = Totals()
        self._region: int | None = None
        self._address: str | None = None
        self._given_up_at: float | None = None
        self.now = 0.0
        self._recruiter = recruiter
        self._port, self._sessions, self._errands = port, sessions, errands
        self._size_pool = size_pool
        self.loader = recruiter.supervisor("loader", self)
        self.engine = recruiter.supervisor("engine", self)

    @property
    def children(self) -> tuple[Supervisor, Supervisor]:
        return self.loader, self.engine

    @property
    def ready(self) -> bool:
        return self.loader.state == "ready" and self.engine.state == "ready"

    # --- life ---

    def start(self, now: float) -> None:
        self.now = now
        for child in self.children:
            child.start(now)

    def tick(self, now: float) -> None:
        self.now = now
        if self.loader.state != "ready":
            self.engine.vigil.excuse(now)
        for child in self.children:
            child.tick(now)

    def stop(self, deadline_s: float, now: float) -> None:
        """Message, SIGTERM, SIGKILL; `tick` goes on until both are reaped."""
        for child, stop in ((self.engine, e.Stop(deadline_s)), (self.loader, ld.Stop(deadline_s))):
            if child.alive:
                self._send(child, stop)
            child.stop(deadline_s, now)

    def try_again(self, now: float) -> None:
        """A client asks though a child was given up: one more attempt, unless the last was just now."""
        refusal = self._sessions.refusal
        if self._given_up_at is None or now < self._given_up_at + TRY_AGAIN_S:
            return
        if refusal is not None and refusal.kind == "shutdown":
            return
        self._given_up_at = None
        self._sessions.refusal = None
        for child in self.children:
            child.try_again(now)

    def close(self) -> None:
        """After both are reaped."""
        if self._region is not None:
            os.close(self._region)
            self._region = None
        for child in self.children:
            child.log.close()

    # --- what the supervisors report ---

    def spawned(self, child: Supervisor) -> None:
        self._port.open(child.identity)
        if child is self.engine:
            self._tell_loader_of_engine()
            self._give_pool(child)
            self._tell_engine_of_loader()

    def died(self, child: Supervisor, epoch: int, why: str) -> None:
        self._port.drop(child.identity)
        if child is self.loader:
            self._address = None
            (self._recruiter.sockets / f"loader-{epoch}.sock").unlink(missing_ok=True)
            self._errands.fail_all(f"the loader died: {why}")
            if self.engine.alive:
                self._send(self.engine, e.LoaderDead(epoch))
        else:
            if self.loader.alive:
                self._send(self.loader, ld.EngineDead(epoch))
            self._sessions.engine_is_gone(why, self.now)

    def given_up(self, child: Supervisor) -> None:
        self._given_up_at = self.now
        text = f"the {child.role} cannot be kept alive: {child.last_error}"
        self._sessions.fail_all("environment", text, self.now)
        self._sessions.refusal = RequestError("environment", text)

    # --- what the children say ---

    def receive(self, limit: int) -> None:
        """Up to `limit` messages of both."""
        for _ in range(limit):
            received = self._port.receive()
            if received is None:
                return
            identity, body = received
            child = self.loader if identity == self.loader.identity else self.engine
            child.vigil.word(self.now)
            try:
                if child is self.loader:
                    self._loader_says(ld.from_loader.decode(body))
                else:
                    self._engine_says(e.from_engine.decode(body))
            except ProtocolError as error:
                self.bad_messages += 1
                child.kill(f"sent what is no message ({error.kind}: {error})")

    def _loader_says(self, message: ld.FromLoader) -> None:
        match message:
            case ld.Geometry():
                self._geometry_is(message.geometry)
            case ld.Ready():
                self._address = message.address
                self.loader.is_ready(self.now)
                self._tell_loader_of_engine()
                self._tell_engine_of_loader()
            case ld.Beat():
                self.loader.vigil.beat(0, False, self.now)
                self.loader.facts = dict(message.facts)
            case ld.Failed() if message.ref is None:
                self._cannot_go_on(self.loader, message.text, user=message.kind == "bad_request")
            case ld.Failed() | ld.Stats() | ld.Resized() | ld.Pinned() | ld.Calibrated():
                self._errands.answered(message)
            case _:
                assert_never(message)

    def _engine_says(self, message: e.FromEngine) -> None:
        self.totals.hear(message)
        match message:
            case e.Ready():
                self.facts = dict(message.facts)
                self.engine.is_ready(self.now)
                context = self.facts.get("context")
                self._sessions.engine_is_ready(self.now, context if isinstance(context, int) else None)
            case e.Beat():
                self.engine.vigil.beat(message.progress, message.busy, self.now)
                self.engine.facts = dict(message.facts)
            case e.Failed() if message.request is None:
                user = message.kind in ("bad_request", "unsupported", "too_long")
                self._cannot_go_on(self.engine, message.text, user=user)
            case e.Progress() | e.Tokens() | e.Finished() | e.Failed():
                self._sessions.engine_says(message, self.now)
            case _:
                assert_never(message)

    def _cannot_go_on(self, child: Supervisor, text: str, *, user: bool) -> None:
        """Before the service was ever ready, what a child says of itself will be true at the next start as well. Later
        it is worth a few more starts: a file may be back by then.
        """
        child.note_error(text, self.now, fatal=not self.served, user=user)

    # --- the pool ---

    def _geometry_is(self, geometry: Geometry) -> None:
        if self.geometry is None:
            self.layout = self._size_pool(geometry)
            self.geometry = geometry
            try:
                self._region = create_region(self.layout.nbytes)
            except OSError as error:
                raise EnvironmentFailure(f"cannot get {self.layout.nbytes} bytes of memory: {error}") from error
            self._give_pool(self.engine)
        elif geometry != self.geometry:
            text = "the model's files are not those that the service was started with: stop it and serve again"
            self.loader.note_error(text, self.now, fatal=True)
            return
        self._give_pool(self.loader)

    def _give_pool(self, child: Supervisor) -> None:
        if child.process is None or self.geometry is None or self.layout is None or self._region is None:
            return
        # A child that died just now is found by its supervisor.
        with contextlib.suppress(OSError):
            child.process.send_region(self.layout.generation, self.layout.nbytes, self._region)
        self._send(child, ld.Pool(self.layout) if child is self.loader else e.Pool(self.geometry, self.layout))

    def _tell_loader_of_engine(self) -> None:
        """A new loader writes no slot until it knows what reads the pool: this engine, or none."""
        if self._address is None or not self.loader.alive:
            return
        if self.engine.process is not None:
            self._send(self.loader, ld.EngineUp(self.engine.epoch, self.engine.process.pid))
        else:
            self._send(self.loader, ld.EngineDead(self.engine.epoch))

    def _tell_engine_of_loader(self) -> None:
        if self._address is not None and self.engine.alive:
            self._send(self.engine, e.LoaderUp(self.loader.epoch, self._address))

    def check_loader(self) -> None:
        """Raises RequestError when there is no loader to ask."""
        if self.loader.state != "ready":
            raise RequestError("environment", f"the loader is {self.loader.state}; try again later")

    def tell_loader(self, message: ld.ToLoader) -> None:
        self._send(self.loader, message)

    def tell_engine(self, message: e.ToEngine) -> None:
        self._send(self.engine, message)

    def _send(self, child: Supervisor, message: ld.ToLoader | e.ToEngine) -> None:
        body = ld.to_loader.encode(message) if child is self.loader else e.to_engine.encode(message)  # type: ignore[arg-type]
        if not self._port.send(child.identity, body) and child.alive:
            child.kill("does not read its messages")
