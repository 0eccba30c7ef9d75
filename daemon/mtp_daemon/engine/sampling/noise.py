"""The noise a choice is made with: keyed by (seed, position) when a seed is given, fresh otherwise."""

import hashlib
import secrets
from collections.abc import Sequence

import mlx.core as mx
import numpy as np


def position_key(seed: int, position: int) -> tuple[int, int]:
    """The Threefry key of one position: BLAKE2b-64 of seed and position, each 8 bytes little-endian.

    A counter-based generator: nothing but the seed and the position enters, so a draft, a verify of any depth and a
    restarted engine all see the same noise.
    """
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + position.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def gumbel(keys: Sequence[tuple[int, int]], vocabulary: int) -> mx.array:
    """Standard Gumbel noise [R, V], one row a key (MLX's Threefry 2x32)."""
    table = mx.array(np.array(keys, dtype=np.uint32).reshape(len(keys), 2))
    rows: mx.array = mx.vmap(lambda key: mx.random.gumbel((vocabulary,), key=key))(table)
    return rows


class FreshNoise:
    """Independent noise for every use: unseeded requests. The state is this object's, not MLX's global one."""

    def __init__(self, seed: int | None = None) -> None:
        self._key = mx.random.key(secrets.randbits(63) if seed is None else seed)

    def gumbel(self, rows: int, vocabulary: int) -> mx.array:
        return mx.random.gumbel((rows, vocabulary), key=self._next())

    def uniform(self, rows: int, columns: int) -> mx.array:
        return mx.random.uniform(shape=(rows, columns), key=self._next())

    def _next(self) -> mx.array:
        self._key, key = mx.random.split(self._key)
        return key
