"""How many tokens to draft: the face of every depth controller."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RoundTimes:
    """What one finished round was and what it took.

    `drafted` drafts were offered on the chosen path (0: plain decoding) and the first `accepted` of them were right:
    the round committed `accepted + 1` tokens. `draft_s`: the head's forwards, re-feeding included. `verify_s`: verify,
    acceptance and commit. Neither contains `stall_s`, the time spent waiting for experts in either. `requests` and
    `misses` count distinct experts asked for and not resident, summed over the layers of both.
    """

    drafted: int
    accepted: int
    draft_s: float
    verify_s: float
    stall_s: float
    requests: int
    misses: int

    @property
    def total_s(self) -> float:
        return self.draft_s + self.verify_s + self.stall_s


class DepthController(Protocol):
    """Pure: it has no clock, and the same observations give the same depths."""

    def choose(self, limit: int) -> int:
        """The number of tokens to draft in the next round, 0..limit."""
        ...

    def observe(self, round_: RoundTimes) -> None:
        """Learn from the round that just ended."""
        ...

    def successor(self) -> "DepthController":
        """The controller of the next request: keeps what holds for the machine, drops what held for the text."""
        ...
