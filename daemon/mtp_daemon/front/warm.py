"""What serve says of a warm start: how far the loader is with filling the pool before anything is asked."""

from collections.abc import Callable, Mapping
from typing import Any


def warmth(facts: Mapping[str, Any]) -> str | None:
    """A line on the loader's `facts`; None where it keeps no statistics (prefetch is off, or it has said nothing)."""
    if not (source := facts.get("statistics")):
        return None
    if (share := float(facts.get("warm", 1.0))) < 1.0:
        return f"{share:.0%} of what goes into the pool ahead is there; requests come first ({source})"
    return f"the pool is filled; {source}" if facts.get("learned") else f"no: {source}"


class WarmStart:
    """Says once when a warm start that was under way is over."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._under_way = False

    def look(self, facts: Mapping[str, Any]) -> None:
        """With the loader's facts of now."""
        under_way = "statistics" in facts and float(facts.get("warm", 1.0)) < 1.0
        if self._under_way and not under_way and (resident := facts.get("resident", 0)):
            self._say(f"warm: {resident} experts are in the pool")
        self._under_way = under_way
