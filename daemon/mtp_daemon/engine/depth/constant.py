"""Always the same depth: for comparing and testing."""

from mtp_daemon.engine.depth.interface import RoundTimes


class Constant:
    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, limit: int) -> int:
        return min(self._depth, limit)

    def observe(self, round_: RoundTimes) -> None:
        """Nothing to learn."""

    def successor(self) -> "Constant":
        return self
