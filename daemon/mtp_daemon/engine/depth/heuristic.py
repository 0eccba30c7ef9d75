"""Grow after a round whose drafts were all right, shrink after a miss: knows acceptance, knows no cost."""

from mtp_daemon.engine.depth.interface import RoundTimes


class Heuristic:
    """Never leaves depth 1 downwards: at 0 it would see no acceptance to grow by."""

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum
        self._depth = min(max(1, initial), maximum)

    def choose(self, limit: int) -> int:
        return min(self._depth, limit)

    def observe(self, round_: RoundTimes) -> None:
        if round_.drafted == 0:
            return
        # A round cut short (by the answer's end, or a drafter that stopped early) says nothing of the full depth.
        if round_.accepted == round_.drafted and round_.drafted >= self._depth:
            self._depth = min(self._depth + 1, self._maximum)
        elif round_.accepted < round_.drafted:
            self._depth = min(max(1, self._depth - 1), self._maximum)

    def successor(self) -> "Heuristic":
        return Heuristic(self._initial, self._maximum)
