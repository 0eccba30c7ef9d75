"""Taking a verify back to any of its positions, for every kind of cache a request has.

| cache | how a position is gone back to |
|---|---|
| `KVCache` and its kin | trimmed: rows past the offset are never read |
| gated-delta state (`DeltaCache`) | the trail that its layer recorded during the verify |
| rotating, chunked, other arrays | copies taken after each position; the verify must go one position at a time |

Nothing is recomputed. Whoever leaves a verify without `commit` calls `restore`, and every cache is as it was.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from mtp_daemon.engine.decode.gated_delta import DeltaCache
from mtp_daemon.engine.errors import EngineBug, RequestRefused

_TRIMMED = (KVCache, ConcatenateKVCache, QuantizedKVCache)
_COPIED = (RotatingKVCache, ChunkedKVCache, ArraysCache)


class Rollback(Protocol):
    """One cache's way back, taken before a verify."""

    def widen(self, rows: int) -> None:
        """Repeat the cache for `rows` candidate paths that are verified side by side."""

    def mark(self) -> None:
        """One more position has been fed (position by position only)."""

    def commit(self, kept: int, fed: int, row: int) -> None:
        """Keep the first `kept` (1 to `fed`) of the positions fed since, of batch row `row`; batch size 1 after it."""

    def restore(self) -> None:
        """Drop everything fed since."""


class _Trim:
    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._offset = cache.offset
        self._narrow: tuple[Any, Any] | None = None

    def widen(self, rows: int) -> None:
        cache = self._cache
        if not isinstance(cache, KVCache):
            raise RequestRefused(f"speculation tree cannot run side by side on a {type(cache).__name__}")
        self._narrow = cache.keys, cache.values
        if cache.keys is not None:
            # New arrays: the forward writes into these, and the narrow ones stay as they are.
            cache.keys = mx.repeat(cache.keys[..., : cache.offset, :], rows, axis=0)
            cache.values = mx.repeat(cache.values[..., : cache.offset, :], rows, axis=0)

    def mark(self) -> None:
        pass

    def commit(self, kept: int, fed: int, row: int) -> None:
        cache = self._cache
        if self._narrow is None:
            cache.trim(fed - kept)
            return
        span = slice(self._offset, self._offset + kept)
        keys, values = cache.keys[row : row + 1, :, span], cache.values[row : row + 1, :, span]
        self.restore()
        cache.update_and_fetch(keys, values)

    def restore(self) -> None:
        if self._narrow is not None:
            self._cache.keys, self._cache.values = self._narrow
        self._cache.offset = self._offset


class _Trail:
    def __init__(self, cache: DeltaCache, batch: bool) -> None:
        self._cache = cache
        self._before = list(cache.cache)
        self._marks: list[list[mx.array | None]] = []
        self._wide = False
        cache.trail, cache.recording = None, batch

    def widen(self, rows: int) -> None:
        self._wide = True
        self._cache.cache = [None if x is None else mx.repeat(x, rows, axis=0) for x in self._before]

    def mark(self) -> None:
        self._marks.append(list(self._cache.cache))

    def commit(self, kept: int, fed: int, row: int) -> None:
        cache = self._cache
        if kept < fed or self._wide:
            if self._marks:
                marked = self._marks[kept - 1]
                cache.cache = [None if x is None else x[row : row + 1] for x in marked] if self._wide else marked
            elif cache.trail is not None:
                cache.cache = cache.trail.at(kept, row)
            else:
                raise EngineBug("a gated-delta layer left no trail in a verify that is taken back")
        cache.trail, cache.recording = None, False

    def restore(self) -> None:
        self._cache.cache = list(self._before)
        self._cache.trail, self._cache.recording = None, False


class _Copies:
    """Snapshots of a cache's whole state. Writing a slice into an `mx.array` changes that very object, so each
    snapshot holds handles of its own (`mx.array(a)`: another object on the same data, no copy of the bytes).
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._before = _handles(cache.state)
        self._marks: list[Any] = []

    def widen(self, rows: int) -> None:
        raise RequestRefused(f"speculation tree cannot run side by side on a {type(self._cache).__name__}")

    def mark(self) -> None:
        self._marks.append(_handles(self._cache.state))

    def commit(self, kept: int, fed: int, row: int) -> None:
        if kept < fed:
            self._cache.state = self._marks[kept - 1]

    def restore(self) -> None:
        self._cache.state = self._before


def _handles(state: Any) -> Any:
    if isinstance(state, mx.array):
        return mx.array(state)
    if isinstance(state, list | tuple):
        return type(state)(_handles(x) for x in state)
    return state


def leaves(caches: Iterable[Any]) -> list[Any]:
    """The caches with lists of caches taken apart."""
    flat: list[Any] = []
    for cache in caches:
        flat.extend(leaves(cache.caches) if isinstance(cache, CacheList) else [cache])
    return flat


def with_delta_caches(caches: list[Any], layers: int) -> list[Any]:
    """`caches`, fresh from a model of which `layers` can record, with gated-delta ones replaced by ones that do.

    A model whose arrays belong to other layers keeps its own caches, and is verified position by position.
    """
    if sum(type(c) is ArraysCache for c in caches) != layers:
        return caches
    return [DeltaCache(len(c.cache)) if type(c) is ArraysCache else c for c in caches]


def one_at_a_time(caches: Sequence[Any]) -> str | None:
    """Why a verify over these caches must go position by position; None when one batch can be taken back."""
    for cache in leaves(caches):
        if isinstance(cache, (DeltaCache, *_TRIMMED)):
            continue
        if isinstance(cache, _COPIED):
            return f"{type(cache).__name__} cannot go back to a position inside a batch"
        raise RequestRefused(f"speculation cannot take a {type(cache).__name__} back")
    return None


def side_by_side(caches: Sequence[Any]) -> bool:
    """Whether candidate paths can be verified as rows of one batch over these caches."""
    return all(isinstance(cache, DeltaCache | KVCache) for cache in leaves(caches))


class Snapshot:
    """All caches of a request before a verify. Use as a context: leaving it without `commit` restores them.

    `batch`: all positions go in one forward; else one at a time, with `mark` after each. `rows`: paths side by side.
    """

    def __init__(self, caches: Sequence[Any], *, batch: bool, rows: int) -> None:
        self._open = True
        self._parts: list[Rollback] = [_rollback(cache, batch) for cache in leaves(caches)]
        if rows > 1:
            try:
                for part in self._parts:
                    part.widen(rows)
            except RequestRefused:
                self.restore()
                raise

    def mark(self) -> None:
        for part in self._parts:
            part.mark()

    def commit(self, kept: int, fed: int, row: int = 0) -> None:
        for part in self._parts:
            part.commit(kept, fed, row)
        self._open = False

    def restore(self) -> None:
        for part in self._parts:
            part.restore()
        self._open = False

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.restore()


def _rollback(cache: Any, batch: bool) -> Rollback:
    if isinstance(cache, DeltaCache):
        return _Trail(cache, batch)
    if isinstance(cache, _TRIMMED):
        return _Trim(cache)
    return _Copies(cache)
