"""Reading arrays on the host."""

from typing import Any

import mlx.core as mx


def host_ints(array: mx.array) -> list[int]:
    """The integers of a flat array; waits for whatever computes them."""
    values: Any = array.tolist()
    numbers: list[int] = values
    return numbers
