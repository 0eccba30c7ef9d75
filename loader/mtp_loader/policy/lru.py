"""Least recently used."""

from collections import OrderedDict
from collections.abc import Container
from itertools import islice

from mtp_loader.policy.interface import Event


class Lru:
    """Gives up what was asked for longest ago. An event's experts are equally recent; ranks keep their given order.

    With layers asked in a cycle it scores exactly 0 hits as soon as the pool is smaller than one token's demand:
    whatever is needed next was given up just before (`guard.ScanGuard` is for that).
    """

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def record(self, event: Event) -> None:
        order = self._order
        for key in event.keys:
            if key in order:
                order.move_to_end(key)

    def insert(self, key: int) -> None:
        self._order.setdefault(key, None)

    def remove(self, key: int) -> None:
        self._order.pop(key, None)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        return list(islice((key for key in self._order if key not in protected), max(n, 0)))
