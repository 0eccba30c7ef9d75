"""The wire: what is sent arrives; what is not a message is refused with its kind, never guessed at, never a crash."""

import dataclasses
import time
import typing
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_protocol import bounds, client_messages, codec, engine_messages, expert_messages, loader_messages
from mtp_protocol.client_messages import Cancel, Submit, from_client, to_client
from mtp_protocol.codec import MAJOR, MINOR, Codec
from mtp_protocol.errors import ProtocolError
from mtp_protocol.expert_messages import Need, pack_epochs, unpack_epochs
from mtp_protocol.sampling import Sampling

DIRECTIONS = {
    "client to front": (client_messages.from_client, client_messages.FromClient),
    "front to client": (client_messages.to_client, client_messages.ToClient),
    "front to engine": (engine_messages.to_engine, engine_messages.ToEngine),
    "engine to front": (engine_messages.from_engine, engine_messages.FromEngine),
    "engine to loader": (expert_messages.to_loader, expert_messages.ToLoader),
    "loader to engine": (expert_messages.to_engine, expert_messages.ToEngine),
    "front to loader": (loader_messages.to_loader, loader_messages.ToLoader),
    "loader to front": (loader_messages.from_loader, loader_messages.FromLoader),
}

_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**31 - 1),
    float: st.floats(0, 1, allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    Any: st.none() | st.integers(0, 9) | st.text(max_size=5),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a wire type; written apart from the codec's own reading of the types."""
    if hint in _VALUES:
        return _VALUES[hint]
    if hint is Sampling:
        return st.builds(Sampling, temperature=st.floats(0, 2), seed=st.none() | st.integers(0, 99))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: strategy(hints[f.name]) for f in dataclasses.fields(hint)})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(strategy(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(strategy(a) for a in args))
    if type(None) in args:
        return st.none() | strategy(next(a for a in args if a is not type(None)))
    return st.dictionaries(strategy(args[0]), strategy(args[1]), max_size=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=30)
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(direction: str, data: st.DataObject) -> None:
    coder, union = DIRECTIONS[direction]
    message = data.draw(st.one_of(*(strategy(c) for c in typing.get_args(union))))
    assert typing.cast(Codec[Any], coder).decode(typing.cast(Codec[Any], coder).encode(message)) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_not_fatal(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_client.decode(data)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(tag=st.sampled_from([c.__name__ for c in typing.get_args(client_messages.FromClient)]), body=_JSON)
def test_a_wrong_body_is_refused_or_is_a_message(tag: str, body: Any) -> None:
    """Hostile structure under a right tag: either a typed message results or a ProtocolError, nothing else."""
    packed = msgpack.packb([MAJOR, MINOR, tag, body])
    try:
        message = from_client.decode(packed)
    except ProtocolError:
        return
    assert type(message).__name__ == tag


def _kind(data: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        from_client.decode(data)
    return caught.value.kind


def test_each_fault_has_its_kind() -> None:
    ok = {"ref": 1, "request": b"x"}
    assert _kind(b"\xc1") == "not_msgpack"
    assert _kind(msgpack.packb([1, 2])) == "bad_envelope"
    assert _kind(msgpack.packb([MAJOR + 1, 0, "Cancel", ok])) == "bad_version"
    assert _kind(msgpack.packb([MAJOR, MINOR, "Filled", ok])) == "bad_tag"
    assert _kind(msgpack.packb([MAJOR, MINOR, "Cancel", {"ref": 1}])) == "missing_field"
    assert _kind(msgpack.packb([MAJOR, MINOR, "Cancel", ok | {"ref": "1"}])) == "bad_type"
    assert _kind(msgpack.packb([MAJOR, MINOR, "Cancel", ok | {"ref": True}])) == "bad_type"
    assert _kind(msgpack.packb([MAJOR, MINOR, "Cancel", ok | {"more": 1}])) == "unknown_field"
    assert _kind(msgpack.packb([MAJOR, MINOR, "Submit", {"ref": 1, "sampling": {"top_p": 7.0}}])) == "bad_value"
    assert _kind(b"x" * (codec.MAX_MESSAGE_BYTES + 1)) == "too_large"


def _array(count: int, item: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


def _message(tag: str, body: bytes) -> bytes:
    return typing.cast(bytes, msgpack.packb([MAJOR, MINOR, tag, None]))[:-1] + body


MANY = bounds.MAX_ITEMS - 4
REF = b"\xa3ref\x01"


@pytest.mark.parametrize(
    "data",
    [
        _message("Submit", b"\x82" + REF + b"\xa6prompt\x9f" + _array(MANY, b"\x90") * 15),
        _message("Submit", b"\x82" + REF + b"\xa6prompt\x9f" + _array(MANY, b"\x80") * 15),
        _message("Submit", b"\x82" + REF + b"\xaaprompt_ids\x9f" + _array(MANY, b"\x01") * 15),
        _message("Pin", b"\x82" + REF + b"\xa7experts" + _array(MANY, b"\x92\x01\x01")),
        _message("Calibrate", b"\x82" + REF + b"\xa6shares" + _array(MANY, b"\xc3")),
        _message("Nonsense", b"\x9f" + _array(MANY, b"\x80") * 15),
        _message("Submit", b"\x91" * (15 << 20)),
        b"\x9f" + _array(MANY, b"\x90") * 15,
    ],
    ids=["lists", "maps", "ids", "pins", "shares", "no kind", "deep", "no envelope"],
)
def test_a_message_of_millions_of_small_things_is_refused_at_once(data: bytes) -> None:
    """Within the limit of bytes, but unpacking these took up to seven seconds, in which the front served nobody."""
    assert len(data) <= codec.MAX_MESSAGE_BYTES
    began = time.process_time()
    with pytest.raises(ProtocolError) as refused:
        from_client.decode(data)
    assert time.process_time() - began < 0.25
    assert str(refused.value).rstrip()[-1] != ":", "it does not say why"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"stop": ["x"] * 17}, "Submit.stop: 17 items; at most 16"),
        ({"sampling": {"logit_bias": dict.fromkeys(range(1025), 1.0)}}, "logit_bias: 1025 items; at most 1024"),
        ({"sampling": {"temperature": -1.0}}, "temperature must lie between"),
        ({"prompt": 3}, "Submit.prompt: expected str"),
    ],
)
def test_a_refused_value_is_named_and_carries_the_ref(body: dict[str, Any], named: str) -> None:
    with pytest.raises(ProtocolError, match=named) as refused:
        from_client.decode(msgpack.packb([MAJOR, MINOR, "Submit", {"ref": 7} | body]))
    assert refused.value.ref == 7


def test_as_much_as_is_taken_is_taken() -> None:
    """The bounds are those of the largest messages that there may be, and no tighter."""
    for message in (
        client_messages.Pin(1, tuple((i % 128, i) for i in range(client_messages.MAX_PINS))),
        Submit(1, prompt_ids=(1 << 31,) * bounds.MAX_ITEMS),
        Submit(1, prompt="x", stop=("y",) * 16, sampling=Sampling(logit_bias=dict.fromkeys(range(1024), 1.0))),
    ):
        assert from_client.decode(from_client.encode(message)) == message


def test_a_newer_minor_version_may_add_fields() -> None:
    body = {"ref": 1, "request": b"x", "added_later": [1]}
    assert from_client.decode(msgpack.packb([MAJOR, MINOR + 1, "Cancel", body])) == Cancel(1, b"x")


def test_the_wrong_direction_cannot_be_sent() -> None:
    with pytest.raises(ProtocolError, match="not a message of this direction"):
        to_client.encode(typing.cast(Any, Submit(1, prompt="x")))


def test_a_value_that_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="Submit holds a value"):
        from_client.encode(Submit(1, prompt="half a pair \ud800"))


def test_a_message_too_large_is_refused_before_it_leaves() -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        from_client.encode(Submit(1, prompt="x" * codec.MAX_MESSAGE_BYTES))


def test_epochs_travel_in_order_and_other_sizes_are_refused() -> None:
    assert unpack_epochs(pack_epochs(3, 2**40)) == (3, 2**40)
    with pytest.raises(ProtocolError, match="16 bytes"):
        unpack_epochs(b"\0" * 15)


def test_a_need_is_small() -> None:
    """The hot message stays within one packet of a Unix socket: it is sent once per layer that misses."""
    need = Need(2**40, 47, tuple(range(10)), tuple(range(2**20, 2**20 + 10)))
    assert len(expert_messages.to_loader.encode(need)) < 200


@pytest.mark.parametrize("data", [b"\x81\x90\x01", b"\x81\x80\x01", b"\x94\x01\x00\xa6Status\x81\x90\x05"])
def test_a_list_as_a_key_is_no_message(data: bytes) -> None:
    """MessagePack allows any value as a map's key, Python does not: one such frame once killed the front."""
    with pytest.raises(ProtocolError, match="not a MessagePack value"):
        from_client.decode(data)
