"""Whose request is next: clients take turns, each client's own requests keep their order. Pure."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by client. A client that comes with a hundred requests does not delay another's first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def put(self, client: bytes, item: T) -> None:
        self._waiting.setdefault(client, deque()).append(item)

    def take(self) -> T | None:
        """The next item; its client goes to the end of the round."""
        if not self._waiting:
            return None
        client, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[client] = items
        return item

    def put_back(self, client: bytes, item: T) -> None:
        """Return an item that was taken and could not be served: it is the next one again."""
        items = self._waiting.setdefault(client, deque())
        items.appendleft(item)
        self._waiting.move_to_end(client, last=False)

    def remove(self, client: bytes, item: T) -> bool:
        """False when the item does not wait here."""
        items = self._waiting.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._waiting[client]
        return True

    def order(self) -> list[T]:
        """All items in the order in which `take` would hand them out."""
        rows = [list(items) for items in self._waiting.values()]
        longest = max((len(row) for row in rows), default=0)
        return [row[i] for i in range(longest) for row in rows if i < len(row)]
