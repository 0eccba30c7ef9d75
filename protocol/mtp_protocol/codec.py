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
from typing import Any, Generic, TypeVar

import msgpack

from mtp_protocol.errors import ProtocolError

MAJOR = 1
MINOR = 0
MAX_MESSAGE_BYTES = 16 << 20
MAX_ITEMS = 1 << 20  # of an array or a map: more small objects than this keep a receiver busy for seconds

Reader = Callable[[Any, str], Any]


M = TypeVar("M")


class Codec(Generic[M]):
    """Encodes and decodes one closed union of message classes (one direction of one socket)."""

    def __init__(self, *classes: type[M]) -> None:
        self._readers: dict[str, Reader] = {c.__name__: _reader(c) for c in classes}  # type: ignore[arg-type]

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
            envelope = msgpack.unpackb(data, strict_map_key=False, max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS)
        except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:  # TypeError: a list as a key
            raise ProtocolError("not_msgpack", f"not a MessagePack value: {error}") from error
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
        message: M = reader(body, typing.cast(str, tag))
        return message


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
    hints = typing.get_type_hints(cls)
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
