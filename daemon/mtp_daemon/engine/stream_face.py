"""What decoding needs of a stream of experts, whether they stream or are all resident."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from mtp_daemon.engine.stream_stats import StreamStats


class Stream(Protocol):
    """What decoding needs of a stream of experts, resident or not."""

    @property
    def stats(self) -> StreamStats: ...

    @property
    def all_resident(self) -> bool:
        """Every expert of every layer is resident: a forward builds with no host read, so that the next may be built
        before the last one's token is read.
        """

    def announce(self, tokens: Sequence[int]) -> None:
        """The model's next forward will be over these tokens. Where experts stream it reads them, if they are lazy."""

    def forward(self, tokens: Sequence[int], phase: int) -> AbstractContextManager[None]:
        """Surrounds one forward over `tokens` (ids; their number counts where they are not known yet)."""

    def settle(self) -> None:
        """Wait for every forward that was built; pending recalls are answered."""


class ResidentStream:
    """The same face for a plain mlx-lm model with all its experts: nothing streams."""

    def __init__(self) -> None:
        self.stats = StreamStats()

    @property
    def all_resident(self) -> bool:
        return True

    def announce(self, tokens: Sequence[int]) -> None:
        """Nobody reads ahead."""

    @contextmanager
    def forward(self, tokens: Sequence[int], phase: int) -> Iterator[None]:
        self.stats.forwards += 1
        self.stats.tokens += len(tokens)
        yield

    def settle(self) -> None:
        """Nothing reads a pool."""
