"""Hostile frames at the front's real socket: it lives, answers or counts every one, and no request is touched."""

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_client.client import Client
from mtp_client.errors import RequestRefused
from mtp_protocol import client_messages as c
from mtp_protocol.client_messages import MAX_PINS, Finished, Tokens
from mtp_protocol.codec import MAX_MESSAGE_BYTES
from mtp_protocol.run_directory import client_address
from support.fake_children import answer
from support.front_process import DEADLINE_S, FrontProcess

BRIEF = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

VALID = (
    c.Hello(1, "fuzz"),
    c.Submit(2, prompt="x", max_tokens=1),
    c.Submit(2, prompt_ids=(1, 2), max_tokens=1, stop=("a",), keep_s=0.1),
    c.Attach(3, b"r" * 16, 4),
    c.Cancel(4, b"r" * 16),
    c.Status(5),
    c.Pin(6, ((0, 1),)),
    c.Resize(7, "100%"),
    c.Calibrate(8, 12.5, (0.25,)),
)
TEXT, BYTES = st.text(max_size=40), st.binary(max_size=40)
SCALAR = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | BYTES | TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner), max_leaves=8
)
TAG = st.sampled_from([type(message).__name__ for message in VALID] + ["Welcome", "Start", "__init__"]) | SCALAR


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid message with bytes changed, cut, doubled or put in; or with a field of another type."""
    data = c.from_client.encode(draw(st.sampled_from(VALID)))
    if draw(st.booleans()):
        major, minor, tag, body = msgpack.unpackb(data)
        name = draw(st.sampled_from(sorted(body)))
        how = draw(st.sampled_from(["set", "drop", "add", "minor"]))
        if how == "set":
            body[name] = draw(VALUE)
        elif how == "drop":
            del body[name]
        elif how == "add":
            body[draw(st.text(max_size=8))] = draw(VALUE)
        else:
            minor = draw(SCALAR)
        return bytes(msgpack.packb([major, minor, tag, body]))
    at = draw(st.integers(0, len(data) - 1))
    piece = draw(st.binary(max_size=6))
    return draw(
        st.sampled_from([data[:at], data[:at] + piece + data[at + len(piece) :], data[:at] + piece + data[at:]])
    )


ENVELOPE = st.tuples(SCALAR | st.just(1), SCALAR | st.just(0), TAG, VALUE).map(lambda e: bytes(msgpack.packb(list(e))))
ODD_KEYS = st.sampled_from(
    [b"\x81\x90\x01", b"\x94\x01\x00\xa6Status\x81\x80\x05", b"\x81\xd6\xff\x00\x00\x00\x00\x01"]
)
FRAME = st.binary(max_size=200) | mutated() | ENVELOPE | ODD_KEYS
FRAMES = st.lists(FRAME, min_size=1, max_size=3) | st.lists(FRAME, min_size=1, max_size=1)


@pytest.fixture(scope="module")
def front() -> Iterator[FrontProcess]:
    with FrontProcess({"engine": [{"token_every_s": 0.01}]}).wait_ready() as front:
        yield front
        assert front.process.poll() is None, f"the front died: {front.errors()[-3000:]}"


class Stranger:
    """A bare socket. Whatever it says first, the marker it says last is answered, while the front listens."""

    def __init__(self, front: FrontProcess) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(client_address(front.run_dir))
        self.marks = 0

    def say(self, frames: list[bytes]) -> list[c.ToClient]:
        """What the front says to these frames, up to its answer to our marker."""
        self.marks += 1
        marker = 1_000_000_000_000 + self.marks
        self.socket.send_multipart(frames)
        self.socket.send(c.from_client.encode(c.Hello(marker, "marker")))
        heard: list[c.ToClient] = []
        while True:
            assert self.socket.poll(int(DEADLINE_S * 1000)), f"the front says nothing after {frames!r}"
            message = c.to_client.decode(self.socket.recv())
            if isinstance(message, c.Welcome) and message.ref == marker:
                return heard
            heard.append(message)


@pytest.fixture
def stranger(front: FrontProcess) -> Iterator[Stranger]:
    stranger = Stranger(front)
    yield stranger
    stranger.socket.close()


@BRIEF
@given(frames=FRAMES)
def test_any_frames(front: FrontProcess, stranger: Stranger, frames: list[bytes]) -> None:
    """Each message is answered by exactly what the contract says: a failure of its own kind, or what it asked for."""
    heard = [m for m in stranger.say(frames) if not isinstance(m, c.Alive | c.Tokens | c.Progress | c.Finished)]
    assert front.process.poll() is None
    # Pins, sizes and calibrations are answered later, by the loader; everything else before the marker.
    late = len(frames) == 1 and any(name in frames[0] for name in (b"\xa3Pin", b"\xa6Resize", b"\xa9Calibrate"))
    assert heard or late, "a message was dropped without a word"
    if len(frames) > 1:
        assert any(isinstance(m, c.Failed) and m.kind == "protocol" for m in heard)


MIB = 1 << 20


def _to_the_limit(make: Callable[[str], bytes]) -> bytes:
    """The largest message there can be, by the text in it."""
    return make("x" * (MAX_MESSAGE_BYTES - len(make("x" * MIB)) + MIB))


def _submit(**fields: Any) -> bytes:
    return bytes(msgpack.packb([1, 0, "Submit", {"ref": 1, "prompt_ids": [1], "max_tokens": 1, **fields}]))


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (msgpack.packb([b"\0" * (15 * MIB), 0, "Hello", {}]), "protocol"),
        (_to_the_limit(lambda x: bytes(msgpack.packb([1, 0, "Resize", {"ref": 1, "pool": x}]))), "bad_request"),
        (_to_the_limit(lambda x: _submit(system=x)), "too_long"),
        (_to_the_limit(lambda x: _submit(speculation=x)), "bad_request"),
        (msgpack.packb([1, 0, "Pin", {"ref": 1, "experts": [[0, 1]] * (MAX_PINS + 1)}]), "bad_request"),
    ],
    ids=["version", "pool", "system", "speculation", "pins"],
)
def test_the_largest_messages_are_refused_in_few_words(
    front: FrontProcess, stranger: Stranger, frame: bytes, kind: str
) -> None:
    """What is nearly too long to arrive is too long once quoted, or passed on with more beside it: both killed us."""
    failures = [m for m in stranger.say([frame]) if isinstance(m, c.Failed)]
    assert [m.kind for m in failures] == [kind] and len(failures[0].text) < 3000
    assert front.process.poll() is None


def test_bystander_and_books(front: FrontProcess, stranger: Stranger) -> None:
    """While garbage pours in, another client's answer is whole, and each bad message is counted."""
    before = front.status()["bad_messages"]
    with front.client() as client:
        answered = client.generate("bystander", max_tokens=100)
        ids: list[int] = []
        said = 0
        for event in answered:
            if isinstance(event, Tokens):
                ids += event.ids
                # A map whose key is a list cannot be made by packb, and cannot be hashed: it once killed the front.
                stranger.socket.send(b"\x81\x90\x01" if said == 0 else os.urandom(100))
                stranger.socket.send_multipart([b"", b"", b""])
                said += 2
        assert ids == answer("bystander", 100) and isinstance(event, Finished)
    stranger.say([b"last"])
    status = front.status()
    assert status["bad_messages"] == before + said + 1
    assert all(child["restarts"] == 0 for child in status["children"].values())


def test_only_the_id_opens_a_request(front: FrontProcess) -> None:
    """Ids are 128 random bits: near misses, prefixes and what status tells cancel and show nothing."""
    with front.client() as owner, front.client() as other:
        answered = owner.generate("secret", max_tokens=300)
        next(e for e in answered if isinstance(e, Tokens))
        request = answered.request
        assert request is not None and len(request) == 16
        guesses = [bytes(16), b"\xff" * 16, request[:-1], request + b"\0", request[::-1], request.hex().encode(), b""]
        guesses += [bytes([*request[:i], request[i] ^ 1, *request[i + 1 :]]) for i in range(16)]
        guesses += [secrets.token_bytes(16) for _ in range(50)]
        for guess in guesses:
            with pytest.raises(RequestRefused, match="no such request"):
                other.cancel(guess)
            with pytest.raises(RequestRefused, match="no such request"):
                next(other.attach(guess))
        # Status is for everybody: it must not tell what opens a request.
        status = other.status()
        assert request.hex()[:12] not in repr(status) and repr(request)[2:-1] not in repr(status)
        assert status["queue"]["running"] == request.hex()[:8]
        ids = list(answer("secret", 300))
        got = [i for e in answered if isinstance(e, Tokens) for i in e.ids]
        assert ids[-len(got) :] == got and answered.position == 300


def test_ids_do_not_repeat(front: FrontProcess) -> None:
    """Nothing in an id can be foreseen from the last: no counter, no time."""
    with Client(front.run_dir) as client:
        seen = []
        for _ in range(40):
            answered = client.generate("x", max_tokens=0)
            list(answered)
            assert answered.request is not None
            seen.append(answered.request)
    assert len(set(seen)) == 40
    assert all(len({request[i] for request in seen}) > 15 for i in range(16))
