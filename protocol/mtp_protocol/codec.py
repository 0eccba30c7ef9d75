"""Frozen dataclasses to MessagePack and back, checked field by field.

A message is the array `[major, minor, tag, body]`, where `tag` is the dataclass's name and `body` maps field names
to values. Decoding trusts nothing: an unknown tag, a missing or mistyped field and another major version are
`ProtocolError`s. An unknown field is an error at our own minor version and ignored from a newer one, so that a
newer peer may add fields.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import msgpack

from mtp_protocol.bounds import ENVELOPE, Bound, Most, bound_of, unpack
from mtp_protocol.errors import ProtocolError

MAJOR = 1
MINOR = 0
MAX_MESSAGE_BYTES = 16 << 20
_HEAD_BYTES = 64  # the envelope's first three items, of a message that is one

Reader = Callable[[Any, str], Any]


M = TypeVar("M")


class Codec(Generic[M]):
    """Encodes and decodes one closed union of message classes (one direction of one socket)."""

    def __init__(self, *classes: type[M]) -> None:
        self._readers: dict[str, Reader] = {c.__name__: _reader(c) for c in classes}  # type: ignore[arg-type]
        self._bounds: dict[str, Bound] = {c.__name__: ENVELOPE.plus(bound_of(c)) for c in classes}

    def encode(self, message: M) -> bytes:
        """The bytes of `message`; raises ProtocolError if it is not of this direction or too large."""
        tag = type(message).__name__
        if tag not in self._readers:
            raise ProtocolError("bad_tag", f"{tag} is not a message of this direction")
        try:
            data: bytes = msgpack.packb([MAJOR, MINOR, tag, _body(message)], default=_unpackable)
        except (ValueError, OverflowError, TypeError) as error:  # a lone surrogate, an integer over 64 bits, …
            raise ProtocolError("bad_value", f"{tag} holds a value that cannot travel: {error}") from error
        if len(data) > MAX_MESSAGE_BYTES:
            raise ProtocolError("too_large", f"{tag} has {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
        return data

    def decode(self, data: bytes) -> M:
        """The message in `data`; raises ProtocolError for anything else."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise ProtocolError("too_large", f"{len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
        try:
            envelope = unpack(data, self._bounds.get(_claimed_tag(data), ENVELOPE))
        except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:  # TypeError: a list as a key
            raise ProtocolError("not_msgpack", f"not a MessagePack value that is a message: {_why(error)}") from error
        if not isinstance(envelope, list) or len(envelope) != 4:
            raise ProtocolError("bad_envelope", "expected the array [major, minor, tag, body]")
        major, minor, tag, body = envelope
        if major != MAJOR:
            said = major if isinstance(major, int) else f"a {type(major).__name__}"  # anything else may fill megabytes
            raise ProtocolError("bad_version", f"protocol version {said}; this end speaks {MAJOR}.{MINOR}")
        reader = self._readers.get(tag) if isinstance(tag, str) else None
        if reader is None:
            raise ProtocolError("bad_tag", f"no message {str(tag)[:40]!r} in this direction")
        if isinstance(body, dict) and isinstance(minor, int) and minor > MINOR:
            body = _NewerBody(body)
        try:
            message: M = reader(body, typing.cast(str, tag))
        except ProtocolError as error:
            ref = body.get("ref") if isinstance(body, dict) else None
            error.ref = ref if type(ref) is int else None
            raise
        return message


def _claimed_tag(data: bytes) -> str:
    """The kind of message that `data` says it is, read from its first bytes alone; "" when there is none."""
    head = msgpack.Unpacker(max_buffer_size=_HEAD_BYTES)
    head.feed(data[:_HEAD_BYTES])
    try:
        if head.read_array_header() != 4:
            return ""
        head.skip()
        head.skip()
        tag = head.unpack()
    except (ValueError, TypeError, msgpack.UnpackException):
        return ""
    return tag if isinstance(tag, str) else ""


def _why(error: Exception) -> str:
    """msgpack says nothing about some of its errors."""
    if isinstance(error, msgpack.StackError | RecursionError):
        return "it is nested too deeply"
    return str(error) or "there is a byte in it that begins no value"


class _NewerBody(dict[str, Any]):
    """A body from a newer minor version: fields we do not know are ignored."""


def _body(message: Any) -> dict[str, Any]:
    return {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}


def _unpackable(value: Any) -> Any:
    """What MessagePack does not know itself; everything else, tuples too, is packed without a detour over Python."""
    if dataclasses.is_dataclass(value):
        return _body(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot travel on the wire")


@cache
def _reader(hint: Any) -> Reader:
    """A function that checks a decoded MessagePack value against `hint` and builds the typed value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded_reader(_reader(args[0]), next(m.items for m in args[1:] if isinstance(m, Most)))
    if hint is Any:
        return lambda value, where: value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_reader(hint)
    if origin is typing.Literal:
        return _literal_reader(args)
    if origin in (typing.Union, types.UnionType):
        return _optional_reader(hint, args)
    if origin is tuple:
        return _tuple_reader(args)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _mapping_reader(args)
    if hint in (int, float, str, bytes, bool):
        return _scalar_reader(hint)
    raise TypeError(f"{hint!r} cannot travel on the wire")


def _bad(where: str, expected: str, value: Any) -> ProtocolError:
    return ProtocolError("bad_type", f"{where}: expected {expected}, got {type(value).__name__}")


def _scalar_reader(hint: type) -> Reader:
    def read(value: Any, where: str) -> Any:
        if hint is float and type(value) is int:
            return float(value)
        if type(value) is not hint:
            raise _bad(where, hint.__name__, value)
        return value

    return read


def _bounded_reader(inner: Reader, most: int) -> Reader:
    def read(value: Any, where: str) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise ProtocolError("bad_value", f"{where}: {len(value)} items; at most {most} are taken")
        return inner(value, where)

    return read


def _literal_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, str | int) or value not in choices:
            raise ProtocolError("bad_value", f"{where}: {str(value)[:40]!r} is not one of {list(choices)}")
        return value

    return read


def _optional_reader(hint: Any, args: tuple[Any, ...]) -> Reader:
    others = [a for a in args if a is not type(None)]
    if len(others) != 1 or len(args) != 2:
        raise TypeError(f"{hint!r}: only `T | None` unions travel on the wire")
    inner = _reader(others[0])
    return lambda value, where: None if value is None else inner(value, where)


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    many = len(args) == 2 and args[1] is Ellipsis
    hints = [a for a in args if a is not Ellipsis]
    readers = [_reader(a) for a in hints]
    # Long arrays hold plain values, or pairs of them: looking at types alone is several times as fast. A float may
    # come as an integer, and what is wrong has to be named: both go the long way.
    plain = all(a in (int, str, bytes, bool) for a in hints)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise _bad(where, "an array", value)
        if many:
            if plain and set(map(type, value)) <= {hints[0]}:
                return tuple(value)
            return tuple(readers[0](v, where) for v in value)
        if plain and [*map(type, value)] == hints:
            return tuple(value)
        if len(value) != len(readers):
            raise ProtocolError("bad_value", f"{where}: expected {len(readers)} items, got {len(value)}")
        return tuple(r(v, where) for r, v in zip(readers, value, strict=True))

    return read


def _mapping_reader(args: tuple[Any, ...]) -> Reader:
    key, item = (_reader(a) for a in args)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _bad(where, "a map", value)
        return {key(k, where): item(v, where) for k, v in value.items()}

    return read


def _dataclass_reader(cls: type) -> Reader:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(cls)}
    required = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _bad(where, "a map", value)
        if missing := required - value.keys():
            raise ProtocolError("missing_field", f"{where}: no field {min(missing)!r}")
        unknown = value.keys() - fields.keys()
        if unknown and not isinstance(value, _NewerBody):
            raise ProtocolError("unknown_field", f"{where}: no such field as {str(next(iter(unknown)))[:40]!r}")
        try:
            return cls(**{n: fields[n](v, f"{where}.{n}") for n, v in value.items() if n in fields})
        except ValueError as error:  # a __post_init__ that refuses the value
            raise ProtocolError("bad_value", f"{where}: {error}") from error

    return read
