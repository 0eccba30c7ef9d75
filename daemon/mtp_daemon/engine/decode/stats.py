"""The numbers of one answer. They add up: see `RoundStats.as_dict`."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LOW_ACCEPTANCE = 0.05
ENOUGH_DRAFTS = 40


@dataclass
class Seconds:
    """Where the time of rounds went. The parts do not overlap, but `stall`, which is time within draft and verify."""

    draft: float = 0.0
    verify: float = 0.0
    sync: float = 0.0
    commit: float = 0.0
    stall: float = 0.0

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.sync + self.commit


@dataclass
class RoundStats:
    """`drafted` counts drafts that were verified on the path that was taken, `accepted` those that were right.

    A round's verify commits its accepted drafts and one token more; a rescue is a second verify in the same round.
    """

    rounds: int = 0
    verifies: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    rescues: int = 0
    offered_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    depths: list[list[int]] = field(default_factory=list)  # runs of [depth, rounds]
    probed: int = 0
    probe_hits: list[int] = field(default_factory=lambda: [0, 0, 0])
    pipelined: int = 0
    seconds: Seconds = field(default_factory=Seconds)

    def verified(self, drafted: int, accepted: int) -> None:
        """One verify of `drafted` drafts committed `accepted` of them and one token."""
        self.verifies += 1
        self.committed += accepted + 1
        self.drafted += drafted
        self.accepted += accepted
        # A draft after the first wrong one was never judged: offered counts those that were.
        for position in range(min(drafted, accepted + 1)):
            self.offered_at[position] += 1
            self.accepted_at[position] += position < accepted

    def round_ended(self, depth: int, committed: int) -> None:
        self.rounds += 1
        self.lengths[committed] += 1
        if self.depths and self.depths[-1][0] == depth:
            self.depths[-1][1] += 1
        else:
            self.depths.append([depth, 1])

    def probe(self, top: list[int], true: int) -> None:
        """The head's best three at the first position, and the token that was right there."""
        self.probed += 1
        for k in range(3):
            self.probe_hits[k] += true in top[: k + 1]

    def as_dict(self, misses: int) -> dict[str, Any]:
        """For the answer's `stats`. These hold, whatever happened:

        committed == accepted + verifies == sum(length * rounds of that length);  rounds == sum(accepted_lengths);
        accepted == sum(right at a position);  verifies == rounds + rescues;
        seconds.total == draft + verify + sync + commit.
        """
        positions = range(max(self.offered_at, default=-1) + 1)
        numbers: dict[str, Any] = {
            "rounds": self.rounds,
            "verifies": self.verifies,
            "committed": self.committed,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_by_position": [self.accepted_at[p] / self.offered_at[p] for p in positions],
            "offered_by_position": [self.offered_at[p] for p in positions],
            "accepted_by_position": [self.accepted_at[p] for p in positions],
            "accepted_lengths": {str(k): self.lengths[k] for k in sorted(self.lengths)},
            "tokens_per_round": self.committed / self.rounds if self.rounds else 0.0,
            "rescues": self.rescues,
            "pipelined": self.pipelined,
            "depth_over_time": [list(run) for run in self.depths],
            "misses_per_token": misses / self.committed if self.committed else 0.0,
            "seconds": {
                **{part: getattr(self.seconds, part) for part in ("draft", "verify", "sync", "commit", "stall")},
                "total": self.seconds.total,
            },
        }
        if self.probed:
            numbers["true_token_in_head_top_1_2_3"] = [hits / self.probed for hits in self.probe_hits]
        if warning := self.warning():
            numbers["warning"] = warning
        return numbers

    def warning(self) -> str | None:
        """A line when the head hardly ever agrees: its wiring or its weights are probably not this model's."""
        judged = self.offered_at[0]
        if judged < ENOUGH_DRAFTS or self.accepted_at[0] >= LOW_ACCEPTANCE * judged:
            return None
        share = 100 * self.accepted_at[0] / judged
        return f"only {share:.1f} % of first drafts were right: the MTP head may not belong to this model"
