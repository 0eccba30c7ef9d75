"""How many values a kind of message may hold, read off its types.

A message within the limit of bytes can still hold millions of small values, which take seconds to unpack. Each
receiver's unpacker is therefore told beforehand what the kind that the message claims to be can need at most.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgpack

MAX_ITEMS = 1 << 20  # of an array or a map, where its type says nothing
# Beyond what is needed: a message that is wrong by little can be refused more exactly, and a newer peer may add fields.
_SLACK = 64


@dataclasses.dataclass(frozen=True)
class Most:
    """In `Annotated[tuple[T, ...], Most(n)]`: at most n items; the same for a Mapping."""

    items: int


@dataclasses.dataclass(frozen=True)
class Bound:
    """`containers`: arrays and maps in a whole message, `items`: what is in them all together (None: the types do not
    say); `longest`: items of any one of them. Empty containers cost most, millions of numbers in a few hold much too.
    """

    containers: int | None
    items: int | None
    longest: int

    def plus(self, other: "Bound", times: int = 1) -> "Bound":
        """With `times` values that are bounded by `other`."""
        if self.containers is None or self.items is None or other.containers is None or other.items is None:
            return Bound(None, None, max(self.longest, other.longest))
        return Bound(
            self.containers + times * other.containers,
            self.items + times * other.items,
            max(self.longest, other.longest),
        )


_PLAIN, _UNKNOWN = Bound(0, 0, _SLACK), Bound(None, None, MAX_ITEMS)
# [major, minor, tag, body].
ENVELOPE = Bound(1 + _SLACK, 4 + _SLACK, _SLACK)


def bound_of(hint: Any, most: int = MAX_ITEMS) -> Bound:
    """What a value of this type can hold; `most` is the number of its own items where an annotation says it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return bound_of(args[0], next(m.items for m in args[1:] if isinstance(m, Most)))
    if hint is Any:
        return _UNKNOWN
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _each(typing.get_type_hints(hint, include_extras=True).values())
    if origin in (typing.Union, types.UnionType):
        return bound_of(next(a for a in args if a is not type(None)), most)
    if origin is tuple and args[-1] is not Ellipsis:
        return _each(args)
    if origin is tuple:
        return _many(bound_of(args[0]), most)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _many(bound_of(args[1]), most)
    return _PLAIN


def _each(hints: Collection[Any]) -> Bound:
    bound = Bound(1, len(hints), _SLACK)
    for hint in hints:
        bound = bound.plus(bound_of(hint))
    return bound


def _many(item: Bound, most: int) -> Bound:
    most += _SLACK
    return Bound(1, most, most).plus(item, most)


def unpack(data: bytes, bound: Bound) -> Any:
    """The MessagePack value in `data`; raises what msgpack raises, and ValueError for one beyond `bound`."""
    count = (
        _counting(bound.containers, bound.items) if bound.containers is not None and bound.items is not None else None
    )
    return msgpack.unpackb(
        data,
        strict_map_key=False,
        max_array_len=bound.longest,
        max_map_len=bound.longest,
        list_hook=count,
        object_hook=count,
    )


def _counting(containers: int, items: int) -> Callable[[Any], Any]:
    """A hook that lets so many arrays and maps pass, with so many items."""
    containers_left, items_left = containers, items

    def count(container: Any) -> Any:
        nonlocal containers_left, items_left
        containers_left -= 1
        items_left -= len(container)
        if containers_left < 0:
            raise ValueError(f"it holds more than {containers} arrays and maps")
        if items_left < 0:
            raise ValueError(f"its arrays and maps hold more than {items} values")
        return container

    return count
