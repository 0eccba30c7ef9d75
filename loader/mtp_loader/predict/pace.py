"""How fast reads and layers go, measured, and how many prefetches fit into the time until they are needed."""

from collections.abc import Sequence

_FADE = 0.9  # about the last ten reads or layers count: a disk's speed changes within a second
_MOST = 16  # prefetches under way: more would only queue in front of the next layer's
_AHEAD = 2  # layers' time in which a prefetch is still of use, for so far ahead is predicted


class Pace:
    """Fading means. The caller measures and gives times in; seconds throughout."""

    def __init__(self, threads: int, layers: Sequence[int]) -> None:
        self.threads = threads
        self.read_s = 0.0
        self.layer_s = 0.0
        self._demand_s = 0.0
        self._position = {layer: i for i, layer in enumerate(sorted(layers))}
        self._last: tuple[int, float] | None = None

    @property
    def depth(self) -> int:
        """Prefetches that may be under way: as many as the readers can finish before the layers ahead need them.

        At least one, so that what is measured stays true; the gate says whether prefetching is worth anything.
        """
        if self.read_s <= 0.0 or self.layer_s <= 0.0:
            return 1
        return max(1, min(_MOST, int(self.threads * _AHEAD * self.layer_s / self.read_s)))

    def read(self, seconds: float, *, demand: bool) -> None:
        """One expert's read is over. Demands count: prefetches wait on purpose."""
        if demand or self._demand_s == 0.0:
            self.read_s = seconds if self.read_s == 0.0 else _FADE * self.read_s + (1.0 - _FADE) * seconds
        if demand:
            self._demand_s = self.read_s

    def reached(self, layer: int, now: float) -> None:
        """The engine is at this layer now; layers between were passed meanwhile."""
        position = self._position.get(layer)
        if position is None:
            return
        if self._last is not None and position > self._last[0]:
            each = (now - self._last[1]) / (position - self._last[0])
            self.layer_s = each if self.layer_s == 0.0 else _FADE * self.layer_s + (1.0 - _FADE) * each
        if self._last is None or position != self._last[0]:
            self._last = (position, now)
