"""S3-FIFO: a small probation queue in front of a large one, and a memory of who was turned away.

After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).
"""

from collections import OrderedDict
from collections.abc import Container
from itertools import chain

from mtp_loader.policy.interface import Event

_SMALL_SHARE = 0.1
_MOST_USES = 3
_PROMOTED_ABOVE = 1


class S3Fifo:
    """Gives up what was not used again soon after it came.

    New experts enter the small queue (a tenth of all); one used more than once there moves to the main queue when its
    turn comes, the others leave and are remembered; a remembered one that returns enters the main queue at once. In the
    main queue a used expert gets another round for each use, at most three.

    Asking must not move the queues, so what the paper does while it looks for a victim is done in `_settle` after the
    victim has left: every expert stepped over is moved then, once, which keeps the cost of a miss flat.
    """

    def __init__(self) -> None:
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghost: OrderedDict[int, None] = OrderedDict()

    def record(self, event: Event) -> None:
        for key in event.keys:
            queue = self._small if key in self._small else self._main
            uses = queue.get(key)
            if uses is not None:
                queue[key] = min(uses + 1, _MOST_USES)

    def insert(self, key: int) -> None:
        if key in self._small or key in self._main:
            return
        if key in self._ghost:
            del self._ghost[key]
            self._main[key] = 0
        else:
            self._small[key] = 0

    def remove(self, key: int) -> None:
        if self._small.pop(key, None) is not None:
            self._ghost[key] = None
        elif self._main.pop(key, None) is None:
            return
        self._settle()

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        small = self._walk_small(n, protected)
        main: list[int] | None = None  # walked only when it is its turn: it may be long
        found: list[int] = []
        held, total = len(self._small), len(self._small) + len(self._main)
        while len(found) < n:
            if small and held > _SMALL_SHARE * total:
                found.append(small.pop(0))
                held -= 1
            else:
                main = self._walk_main(n, protected) if main is None else main
                if not (main or small):
                    break
                found.append((main or small).pop(0))
            total -= 1
        return found

    def _walk_small(self, n: int, protected: Container[int]) -> list[int]:
        found: list[int] = []
        for key, uses in self._small.items():
            if len(found) == n:
                break
            if uses <= _PROMOTED_ABOVE and key not in protected:
                found.append(key)
        return found

    def _walk_main(self, n: int, protected: Container[int]) -> list[int]:
        rounds: list[list[int]] = [[] for _ in range(_MOST_USES + 1)]
        waiting = ((key, uses) for key, uses in self._small.items() if uses > _PROMOTED_ABOVE)
        for key, uses in chain(self._main.items(), waiting):
            if len(rounds[0]) >= n:
                break
            if key not in protected:
                rounds[uses].append(key)
        return list(chain.from_iterable(rounds))[:n]

    def _settle(self) -> None:
        while self._small:
            key, uses = next(iter(self._small.items()))
            if uses <= _PROMOTED_ABOVE:
                break
            del self._small[key]
            self._main[key] = 0
        while self._main:
            key, uses = next(iter(self._main.items()))
            if uses == 0:
                break
            del self._main[key]
            self._main[key] = uses - 1
        while len(self._ghost) > len(self._main) + len(self._small):
            self._ghost.popitem(last=False)
