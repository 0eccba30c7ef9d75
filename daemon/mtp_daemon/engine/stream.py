"""The stream of experts through one engine: what every forward opens, and what its MoE layers ask.

`forward` surrounds every forward of trunk or head; `settle` says that its results have been read, or waits for them.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from mtp_daemon.engine.stream_stats import StreamStats

PROMPT = 0
DECODE = 1


class Stream(Protocol):
    """What decoding needs of a stream of experts, resident or not."""

    @property
    def stats(self) -> StreamStats: ...

    @property
    def all_resident(self) -> bool:
        """Every expert of every layer is resident: a forward builds with no host read, so that the next may be built

        before the last one's token is read.
        """

    def forward(self, tokens: Sequence[int], phase: int) -> AbstractContextManager[None]:
        """Surrounds one forward over `tokens` (ids; their number counts where they are not known yet)."""

    def settle(self) -> None:
        """Wait for every forward that was built; pending recalls are answered, routing is reported."""


class ResidentStream:
    """The same face for a plain mlx-lm model with all its experts: nothing streams."""

    def __init__(self) -> None:
        self.stats = StreamStats()

    @property
    def all_resident(self) -> bool:
        return True

    @contextmanager
    def forward(self, tokens: Sequence[int], phase: int) -> Iterator[None]:
        self.stats.forwards += 1
        self.stats.tokens += len(tokens)
        yield

    def settle(self) -> None:
        """Nothing reads a pool."""
