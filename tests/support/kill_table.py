"""What the kill matrix found, cell by cell: kills survived, and the longest that anybody waited for it."""

from collections import defaultdict
from collections.abc import Sequence

import pytest

KILLS = pytest.StashKey["KillTable"]()
LONGEST_S = 10.0  # a child's death may cost a client no more


class KillTable:
    """Seconds are what a client sees: to the next token, to being told of the front's death; else to the next start."""

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str], list[float]] = defaultdict(list)

    def passed(self, role: str, moment: str, wait_s: float) -> None:
        """One kill that went as it must."""
        self._waits[role, moment].append(wait_s)

    def render(self, roles: Sequence[str], moments: Sequence[str]) -> list[str]:
        """A line a moment, a column a process; nothing when nobody was killed."""
        if not self._waits:
            return []
        lines = [f"{'passes, longest wait':>20}" + "".join(f"{role:>16}" for role in roles)]
        lines += [f"{m:>20}" + "".join(f"{self._cell(role, m):>16}" for role in roles) for m in moments]
        return [*lines, f"{sum(map(len, self._waits.values()))} kills, longest wait {self._longest():.1f} s"]

    def _cell(self, role: str, moment: str) -> str:
        waits = self._waits.get((role, moment))
        return f"{len(waits)}, {max(waits):.1f} s" if waits else "-"

    def _longest(self) -> float:
        return max(wait for waits in self._waits.values() for wait in waits)
