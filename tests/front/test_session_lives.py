"""Random lives of clients and engines: every request ends once, every client sees every token once and in order."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from mtp_daemon.front.client_port import Outcome
from mtp_daemon.front.integrity import check
from mtp_protocol import client_messages as c
from mtp_protocol import engine_messages as e
from support.session_world import World


class Lives(RuleBasedStateMachine):
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.count = 0
        self.working: e.Start | None = None
        self.up = False
        self.given: dict[bytes, list[int]] = {}

    @initialize(target=names)
    def begin(self) -> bytes:
        """Most lives have an engine and something to answer; without this, many would be over before they begin."""
        name = self.connect_one()
        self.engine_up()
        self.submit(name, keep=False)
        self.engine_tokens(2)
        return name

    @rule(target=names)
    def connect(self) -> bytes:
        return self.connect_one()

    def connect_one(self) -> bytes:
        self.count += 1
        name = str(self.count).encode()
        self.world.connect(name)
        return name

    @rule(name=names, keep=st.booleans())
    def submit(self, name: bytes, keep: bool) -> None:
        self.world.submit(name, keep_s=10.0 if keep else 0.0)
        self._engine_reads()

    @rule(name=names, pick=st.integers(0, 20))
    def cancel(self, name: bytes, pick: int) -> None:
        requests = list(self.world.sessions.requests)
        if requests:
            self.world.sessions.cancel(name, c.Cancel(5, requests[pick % len(requests)]), self.world.now)

    @rule(name=names, pick=st.integers(0, 20))
    def attach(self, name: bytes, pick: int) -> None:
        requests = list(self.world.sessions.requests.values())
        if requests:
            request = requests[pick % len(requests)]
            self.world.sessions.attach(name, c.Attach(6, request.id, 0), self.world.now)

    @rule(name=names, state=st.sampled_from(["sent", "full"]))
    def becomes(self, name: bytes, state: Outcome) -> None:
        self.world.sockets[name].state = state

    @rule(target=names, name=consumes(names))
    def vanish(self, name: bytes) -> object:
        self.world.sockets[name].state = "gone"
        self.world.clients.keep_alive(self.world.now + 1.0)
        self.world.pump()
        return multiple()

    @precondition(lambda self: not self.up)
    @rule()
    def engine_up(self) -> None:
        self.up = True
        self.world.sessions.engine_is_ready(self.world.now)
        self._engine_reads()

    @precondition(lambda self: self.up)
    @rule()
    def engine_dies(self) -> None:
        self.up, self.working = False, None
        self.world.engine.clear()
        self.world.sessions.engine_is_gone("killed", self.world.now)

    @precondition(lambda self: self.working is not None)
    @rule(count=st.integers(1, 3))
    def engine_tokens(self, count: int) -> None:
        assert self.working is not None
        request = self.working.request
        made = self.given.setdefault(request, [])
        if len(made) >= self.working.max_tokens:
            self._engine_ends("length")
            return
        ids = tuple(range(len(made), min(len(made) + count, self.working.max_tokens)))
        text = "".join(f"<{i}>" for i in ids)
        self.world.sessions.engine_says(e.Tokens(request, len(made), ids, text), self.world.now)
        if request in self.world.sessions.requests:
            made.extend(ids)

    @precondition(lambda self: self.working is not None)
    @rule(how=st.sampled_from(["stop", "cancelled"]))
    def engine_ends(self, how: str) -> None:
        self._engine_ends(how)

    @precondition(lambda self: self.working is not None)
    @rule()
    def engine_fails(self) -> None:
        assert self.working is not None
        request, self.working = self.working.request, None
        self.world.sessions.engine_says(e.Failed(request, "environment", "disk"), self.world.now)
        self._engine_reads()

    @rule(passed=st.floats(0, 20))
    def time(self, passed: float) -> None:
        self.world.now += passed
        self.world.sessions.expire(self.world.now)

    @rule()
    def pump(self) -> None:
        self.world.pump()

    def _engine_ends(self, how: str) -> None:
        assert self.working is not None
        request, self.working = self.working.request, None
        done = e.Finished(request, how, c.Usage(1, 99), {})  # type: ignore[arg-type]
        self.world.sessions.engine_says(done, self.world.now)
        self._engine_reads()

    def _engine_reads(self) -> None:
        for message in self.world.engine:
            if isinstance(message, e.Start):
                assert self.working is None, "the engine was given a request while it has one"
                self.working = message
                assert list(message.delivered) == self.given.get(message.request, [])
        self.world.engine.clear()

    @invariant()
    def sound(self) -> None:
        self._engine_reads()
        check(self.world.sessions)

    @invariant()
    def clients_are_told_the_truth(self) -> None:
        for socket in self.world.sockets.values():
            seen: dict[bytes, int] = {}
            ended: set[bytes] = set()
            for message in socket.heard:
                match message:
                    case c.Accepted():
                        # An Attach begins again from the start; that is a new story about the same request.
                        seen[message.request] = 0
                        ended.discard(message.request)
                    case c.Tokens():
                        assert message.request not in ended
                        assert message.seq in (0, seen[message.request])
                        seen[message.request] = message.seq + len(message.ids)
                        assert message.ids == tuple(range(message.seq, seen[message.request]))
                        assert message.text == "".join(f"<{i}>" for i in message.ids)
                    case c.Finished():
                        assert message.usage.completion_tokens == len(self.given.get(message.request, []))

    def teardown(self) -> None:
        """Whatever happened: with an engine that works and clients that read, everything ends and is forgotten."""
        world = self.world
        for socket in world.sockets.values():
            if socket.state == "full":
                socket.state = "sent"
        if not self.up:
            self.engine_up()
        for _ in range(2000):
            self._engine_reads()
            if self.working is None:
                break
            self.engine_tokens(3)
        assert not world.sessions.busy
        world.pump()
        world.now += 1000.0
        world.sessions.expire(world.now)
        assert world.sessions.requests == {}
        for name, socket in world.sockets.items():
            if socket.state == "sent" and world.clients.followed(name) == 0:
                accepted = {m.request for m in socket.heard if isinstance(m, c.Accepted)}
                terminal = [m.request for m in socket.heard if isinstance(m, c.Finished | c.Failed) and m.request]
                assert accepted == set(terminal)


TestLives = Lives.TestCase
# Shrinking a failing life takes minutes and helps little: the steps are printed as they were.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
TestLives.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, phases=_PHASES)
