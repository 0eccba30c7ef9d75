"""Clients that do not read, stop, vanish, flood or lie: nobody else notices, and nothing is lost without a word."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgpack
import psutil
import pytest
import zmq

from mtp_client.client import Client
from mtp_client.errors import RequestRefused, ServiceError
from mtp_protocol import client_messages as c
from mtp_protocol.run_directory import client_address
from support.fake_children import answer
from support.front_process import DEADLINE_S, FrontProcess
from support.waiting import until


@pytest.fixture(scope="module")
def shared() -> Iterator[FrontProcess]:
    """One front for the tests that leave it as they found it."""
    with FrontProcess(max_prompt_bytes=2000, pool="50%").wait_ready() as front:
        yield front


class Wire:
    """A bare client socket that reads only when told to."""

    def __init__(self, front: FrontProcess, high_water: int = 1000) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, high_water)
        self.socket.connect(client_address(front.run_dir))

    def say(self, message: c.FromClient) -> None:
        self.socket.send(c.from_client.encode(message))

    def hear(self) -> c.ToClient:
        """The next message that is not Alive."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            left_s = deadline - time.monotonic()
            assert left_s > 0 and self.socket.poll(int(left_s * 1000)), "the front says nothing"
            message = c.to_client.decode(self.socket.recv())
            if not isinstance(message, c.Alive):
                return message

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.destroy(linger=0)


def test_slow_client_gets_everything_in_order() -> None:
    """Nothing read until 20,000 tokens are made; then all are there, in order, and the end.

    Without ROUTER_MANDATORY and the log as the source, a ROUTER drops most of them silently.
    """
    # 5,000 messages: far more than what ZeroMQ and the socket's buffers hold for a client.
    script = {"engine": [{"token_every_s": 0.0, "run": 4}]}
    with FrontProcess(script, context=20_000).wait_ready() as front, Wire(front, high_water=10) as wire:
        wire.say(c.Submit(1, prompt="long", max_tokens=20_000))
        until("all made", lambda: front.status()["requests"]["finished"] == 1, 60.0)
        ids: list[int] = []
        while not isinstance(message := wire.hear(), c.Finished):
            if isinstance(message, c.Tokens):
                assert message.seq == len(ids)
                ids += message.ids
        assert ids == answer("long", 20_000)
        until("the request is forgotten", lambda: front.status()["queue"]["held"] == 0)


def test_client_that_never_reads_costs_bounded_memory() -> None:
    """A client asks status without end and never reads; its unread replies are bounded and it is told so."""
    with FrontProcess().wait_ready() as front, Wire(front, high_water=10) as wire:
        wire.say(c.Hello(1, "deaf"))
        assert isinstance(wire.hear(), c.Welcome)
        memory = psutil.Process(front.process.pid)
        before = memory.memory_info().rss
        for ref in range(20_000):
            try:
                wire.socket.send(c.from_client.encode(c.Status(ref)), zmq.NOBLOCK)
            except zmq.Again:
                wire.socket.poll(50, zmq.POLLOUT)
        assert memory.memory_info().rss - before < 30 << 20
        refused = []
        while not refused:
            message = wire.hear()
            refused = [message] if isinstance(message, c.Failed) else []
        assert refused[0].kind == "busy" and "unread" in refused[0].text
        assert front.status()["phase"] == "serving"


def test_client_killed_mid_stream() -> None:
    """Kill -9 of a client cancels its request within a second; the next client is served."""
    with FrontProcess({"engine": [{"token_every_s": 0.01}]}).wait_ready() as front:
        command = [sys.executable, "-m", "mtp_client.cli", "endless", "-n", "8000", "--run-dir", str(front.run_dir)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.read(5)
            victim.kill()
        until("cancelled", lambda: front.status()["requests"]["cancelled"] == 1, 5.0)
        with front.client() as client:
            ids = [i for e in client.generate("next", max_tokens=5) if isinstance(e, c.Tokens) for i in e.ids]
        assert ids == answer("next", 5)
        assert front.seen("engine", 1).count("Cancel") == 1


def test_kept_request_survives_its_client() -> None:
    """With keep_s the request goes on without its client; Attach gets it from any position, to its end."""
    with FrontProcess({"engine": [{"token_every_s": 0.002, "run": 3}]}).wait_ready() as front:
        with front.client() as client:
            running = client.generate("kept", max_tokens=300, keep_s=60.0)
            seen = [next(e for e in running if isinstance(e, c.Tokens))]
            request, position = running.request, running.position
            assert request is not None
            running._ended = True  # leave without cancelling, as a crash would
        with front.client() as client:
            ids = [i for e in seen for i in e.ids]
            for event in client.attach(request, position):
                if isinstance(event, c.Tokens):
                    assert event.seq == len(ids)
                    ids += event.ids
            assert ids == answer("kept", 300)
            again = [e for e in client.attach(request, 150) if isinstance(e, c.Tokens)]
            assert again[0].seq <= 150 < again[0].seq + len(again[0].ids)
            with pytest.raises(RequestRefused, match="position 301"):
                list(client.attach(request, 301))


def test_unkept_request_is_gone_for_others(shared: FrontProcess) -> None:
    """Attach and Cancel of an unknown id are refused as gone; ids cannot be guessed."""
    with shared.client() as client:
        with pytest.raises(RequestRefused, match="no such request"):
            client.cancel(bytes(16))
        with pytest.raises(RequestRefused, match="no such request"):
            list(client.attach(bytes(16)))


def test_stopped_client_does_not_stop_others() -> None:
    """One client is stopped with SIGSTOP while tokens flow to it; a second is served to its end."""
    with FrontProcess({"engine": [{"token_every_s": 0.0, "run": 20}]}, context=200_000).wait_ready() as front:
        command = [sys.executable, "-m", "mtp_client.cli", "endless", "-n", "60000", "--run-dir", str(front.run_dir)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as stopped:
            assert stopped.stdout is not None
            assert stopped.stdout.read(5)
            os.kill(stopped.pid, signal.SIGSTOP)
            with front.client() as client:
                ids = [i for e in client.generate("me", max_tokens=50) if isinstance(e, c.Tokens) for i in e.ids]
            assert ids == answer("me", 50)
            os.kill(stopped.pid, signal.SIGCONT)
            text = stopped.stdout.read().decode()
        assert stopped.returncode == 0
        assert text.count("<") + 1 >= 59_990


@pytest.mark.parametrize(
    ("body", "kind", "ref"),
    [
        (b"\xc1", "protocol", None),
        (b"", "protocol", None),
        (msgpack.packb([1, 0, "Submit", {"ref": "one"}]), "protocol", None),
        (msgpack.packb([1, 0, "Submit", {"ref": 4, "prompt": 1}]), "protocol", 4),
        (msgpack.packb([1, 0, "Eval", {}]), "protocol", None),
        (msgpack.packb([2, 0, "Status", {"ref": 1}]), "protocol", None),
        (msgpack.packb([1, 0, "Submit", {"ref": 5, "sampling": {"top_p": -1.0}, "prompt": "x"}]), "bad_request", 5),
    ],
)
def test_bad_bytes_are_answered(shared: FrontProcess, body: bytes, kind: str, ref: int | None) -> None:
    """A bad tag, type, version or value is answered as what it is and counted; the service goes on."""
    before = shared.status()["bad_messages"]
    with Wire(shared) as wire:
        wire.socket.send(body)
        message = wire.hear()
        assert isinstance(message, c.Failed) and (message.kind, message.ref) == (kind, ref)
        wire.socket.send_multipart([b"two", b"frames"])
        assert isinstance(wire.hear(), c.Failed)
        status = shared.status()
        assert status["bad_messages"] == before + 2 and status["phase"] == "serving"


def test_clients_take_turns() -> None:
    """One client with many requests does not delay another's first beyond the one that runs."""
    front = FrontProcess({"engine": [{"token_every_s": 0.002}]}).wait_ready()
    with front, front.client() as greedy, front.client() as modest:
        many = [greedy.generate(f"g{i}", max_tokens=30) for i in range(6)]
        accepted = [next(a) for a in many]
        one = modest.generate("m", max_tokens=30)
        mine = next(one)
        assert isinstance(mine, c.Accepted) and mine.ahead <= 2
        assert isinstance(accepted[-1], c.Accepted) and accepted[-1].ahead >= 4
        events = list(one)
        assert any(isinstance(e, c.Progress) and e.phase == "queued" for e in events) or mine.ahead <= 1
        assert front.status()["queue"]["waiting"] >= 2
        for i, answered in enumerate(many):
            ids = [t for e in answered if isinstance(e, c.Tokens) for t in e.ids]
            assert ids == answer(f"g{i}", 30)


def test_full_queue_is_refused() -> None:
    """A queue at its limit answers "busy"; those that wait are still served."""
    slow = {"engine": [{"token_every_s": 0.05}]}
    with FrontProcess(slow, max_queue=2).wait_ready() as front, front.client() as client:
        first = client.generate("a", max_tokens=4)
        assert isinstance(next(first), c.Accepted)
        waiting = [client.generate("b", max_tokens=1), client.generate("c", max_tokens=1)]
        with pytest.raises(ServiceError, match="2 requests wait already") as refused:
            list(client.generate("d"))
        assert refused.value.kind == "busy"
        assert [isinstance(list(a)[-1], c.Finished) for a in (first, *waiting)] == [True] * 3


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "bad_request"),
        ({"prompt": "x", "prompt_ids": (1,)}, "bad_request"),
        ({"prompt_ids": ()}, "bad_request"),
        ({"prompt": "x", "max_tokens": -1}, "bad_request"),
        ({"prompt": "x", "max_tokens": 9000}, "too_long"),
        ({"prompt": "x" * 3000}, "too_long"),
        ({"prompt": "x", "stop": ("",)}, "bad_request"),
        ({"prompt": "x", "keep_s": 1e9}, "bad_request"),
    ],
)
def test_bad_requests_are_refused_by_name(shared: FrontProcess, fields: dict[str, object], kind: str) -> None:
    """The front's own limits: refused at once, with the field's name, before the engine is troubled."""
    with shared.client() as client:
        with pytest.raises(RequestRefused) as refused:
            list(client.generate(**fields))  # type: ignore[arg-type]
        assert refused.value.kind == kind
        assert shared.seen("engine", 1) == ["Pool", "LoaderUp"]


def test_reasons_reach_the_client() -> None:
    """Length, stop, cancelled and an error each arrive as what they are."""
    with FrontProcess({"engine": [{"token_every_s": 0.002}]}).wait_ready() as front, front.client() as client:
        assert _last(client, "x", 5).reason == "length"
        assert _last(client, "STOP@3", 5).reason == "stop"
        answered = client.generate("endless", max_tokens=8000)
        next(e for e in answered if isinstance(e, c.Tokens))
        finished = answered.cancel()
        assert finished is not None and finished.reason == "cancelled"
        with pytest.raises(ServiceError, match="shard 3 at offset 4096"):
            _last(client, "FAIL@3", 5)
        assert _last(client, "one", 0).usage.completion_tokens == 0


def _last(client: Client, prompt: str, n: int) -> c.Finished:
    *_, last = client.generate(prompt, max_tokens=n)
    assert isinstance(last, c.Finished)
    return last


def test_errands_to_the_loader(shared: FrontProcess) -> None:
    """Pins and sizes pass through to the loader and its answer comes back; growing past the region is refused."""
    with shared.client() as client:
        assert client.pin(((0, 1), (1, 2))) == {"pinned": 2}
        for missing, told in (((99, 0), "0-"), ((0, 4096), "0:4096")):
            with pytest.raises(RequestRefused, match=told):
                client.pin(((0, 1), missing))
        assert client.resize("25%") == {"slots": [4]}
        with pytest.raises(RequestRefused, match="cannot grow"):
            client.resize("100%")
        with pytest.raises(RequestRefused, match="a pool is a size"):
            client.resize("plenty")
