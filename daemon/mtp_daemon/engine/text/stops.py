"""Stop strings: where one begins in a growing text, and how much of its end may still become one."""

from collections.abc import Sequence


class StopStrings:
    """Raises ValueError for an empty stop string: it would end every answer before it began."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)

    def find(self, text: str, seen: int) -> int | None:
        """Where the first stop string begins in `text`, of which `seen` characters were searched before."""
        start = max(0, seen - self._longest + 1)
        found = [at for stop in self._stops if (at := text.find(stop, start)) >= 0]
        return min(found, default=None)

    def certain(self, text: str) -> int:
        """How many characters of `text` no stop string can begin in or reach into any more."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[at:]
            if any(stop.startswith(tail) for stop in self._stops):
                return at
        return len(text)
