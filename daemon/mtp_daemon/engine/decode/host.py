"""Reading arrays on the host."""

from collections.abc import Sequence
from typing import Any, overload

import mlx.core as mx
import numpy as np


def host_ints(array: mx.array) -> list[int]:
    """The integers of a flat array; waits for whatever computes them."""
    values: Any = array.tolist()
    numbers: list[int] = values
    return numbers


class FedTokens(Sequence[int]):
    """The ids of a forward that may not have been read yet; whoever asks for one reads them."""

    def __init__(self, ids: mx.array) -> None:
        self._ids = ids
        self._read: list[int] | None = None

    def __len__(self) -> int:
        return self._ids.size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if self._read is None:
            # No reshape of MLX's: that would be a graph of its own, computed behind whatever was launched meanwhile.
            self._read = np.array(self._ids, copy=False).reshape(-1).tolist()
        return self._read[index]
