"""What an answer consists of so far: the source for every follower, for Attach, and for going on after a crash."""

from bisect import bisect_right
from dataclasses import dataclass

from mtp_protocol.client_messages import TokenLogprobs

# A follower that lags gets many runs in one message, but never an unbounded one.
BATCH_TOKENS = 512


@dataclass(frozen=True)
class Run:
    """Tokens number `seq`, `seq + 1`, … as the engine committed them; `text` cannot be divided among them."""

    seq: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


class TokenLog:
    """Append-only. Bounded by the request's max_tokens, which the front has checked."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._starts: list[int] = []
        self._length = 0

    def __len__(self) -> int:
        """How many tokens there are."""
        return self._length

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for run in self._runs for token in run.ids)

    def append(self, run: Run) -> None:
        """Raises ValueError when the run does not begin where the log ends: nothing may be lost or repeated."""
        if run.seq != self._length:
            raise ValueError(f"tokens {run.seq}… came where {self._length}… were due")
        self._runs.append(run)
        self._starts.append(run.seq)
        self._length += len(run.ids)

    def run_at(self, position: int) -> int:
        """Index of the run that holds token `position`; the number of runs when it is still to come."""
        if position >= self._length:
            return len(self._runs)
        return max(0, bisect_right(self._starts, position) - 1)

    def batch(self, first: int) -> tuple[Run, int]:
        """Runs from index `first` on, joined up to BATCH_TOKENS, and the index of the next one."""
        last, tokens = first + 1, len(self._runs[first].ids)
        while last < len(self._runs) and tokens + len(self._runs[last].ids) <= BATCH_TOKENS:
            tokens += len(self._runs[last].ids)
            last += 1
        runs = self._runs[first:last]
        if len(runs) == 1:
            return runs[0], last
        joined = Run(
            seq=runs[0].seq,
            ids=tuple(token for run in runs for token in run.ids),
            text="".join(run.text for run in runs),
            logprobs=tuple(entry for run in runs for entry in run.logprobs),
        )
        return joined, last
