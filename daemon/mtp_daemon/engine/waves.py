"""One MoE layer with experts that are not there: what is resident is computed while the rest is read."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtp_daemon.engine.expert_planes import SORT_FROM, Activation
from mtp_daemon.engine.residency import ABSENT
from mtp_daemon.engine.stream import ExpertStream


class _Rows:
    """The layer's rows, one for each (token, rank), computed group by group and put in order at the end."""

    def __init__(
        self, stream: ExpertStream, layer: int, activation: Activation, x: mx.array, ids: NDArray[Any]
    ) -> None:
        self._stream = stream
        self._layer = layer
        self._planes = stream.planes[stream.residency.bank_of[layer]]
        self._activation = activation
        self._x = x.reshape(-1, 1, x.shape[-1])
        self._ids = ids
        self._flat = ids.reshape(-1)
        self._table = stream.residency.table(layer)
        self.parts: list[mx.array] = []
        self._places: list[NDArray[Any]] = []

    def compute(self, experts: Sequence[int] | NDArray[Any]) -> None:
        """Start on the rows of these experts, which are resident and marked as read."""
        if not len(experts):
            return
        wanted = np.zeros(len(self._table), np.bool_)
        wanted[experts] = True
        places = np.flatnonzero(wanted[self._flat])
        slots = self._table[self._flat[places]]
        if self._stream.verifier is not None:
            self._stream.verifier.check(self._layer, self._flat[places], slots, self._stream.stats)
        if many := places.size >= SORT_FROM:
            order = np.argsort(slots, kind="stable")
            places, slots = places[order], slots[order]
        # One token's row is broadcast over its experts, as SwitchGLU does; otherwise each place gets its token's row.
        x = self._x if self._x.shape[0] == 1 else self._x[mx.array(places // self._ids.shape[-1])]
        part = self._planes.rows(x, mx.array(slots.astype(np.uint32)), self._activation, many).squeeze(-2)
        mx.async_eval(part)  # type: ignore[no-untyped-call]
        self._stream.started(part)
        self.parts.append(part)
        self._places.append(places)

    def result(self) -> mx.array:
        """`[..., K, H]` in the router's order: every row came out as the reference's, so what follows sums the same."""
        order = np.empty(self._flat.size, np.uint32)
        order[np.concatenate(self._places)] = np.arange(self._flat.size, dtype=np.uint32)
        rows = self.parts[0] if len(self.parts) == 1 else mx.concatenate(self.parts)
        return rows[mx.array(order)].reshape(*self._ids.shape, -1)


def gather_in_waves(
    stream: ExpertStream, layer: int, activation: Activation, x: mx.array, ids: NDArray[Any], asked: Callable[[], None]
) -> tuple[mx.array, int]:
    """`(rows [..., K, H], experts that were missing)` for `x` `[..., H]` and router ids `[..., K]`.

    If the layer's distinct experts fit the bank, one Need asks for all that are missing. Otherwise they come in waves
    of half the bank, each expert asked for once: while one wave is computed, the next is read. `asked` is called once
    the first Need is on its way: for what the loader may be told after it. A wave ends with nothing held but the slots
    that are still being read.
    """
    residency, link = stream.residency, stream.link
    rows = _Rows(stream, layer, activation, x, ids)
    distinct = np.unique(ids)
    hits, todo = _split(stream, layer, distinct)
    missed, events = len(todo), stream.events(layer, distinct.tolist())
    hits = _begin(stream, layer, rows, hits, missed)
    while todo:
        size = _wave_size(len(distinct), len(todo), residency.capacity(layer))
        wave, todo = todo[:size], todo[size:]
        stream.stats.waves += 1
        mark = residency.next_mark()
        demand = link.ask(layer, wave, events)
        rows.compute(hits)
        hits = hits[:0]
        if events:
            asked()
        events = ()  # told once, by the first wave
        older = len(rows.parts)
        while arrived := link.collect(demand):
            rows.compute(arrived)
        if demand.missing:  # the pool became smaller meanwhile
            todo = sorted(demand.missing) + todo
            stream.finish()
        elif todo:
            next_size = _wave_size(len(distinct), len(todo), residency.capacity(layer))
            _make_room(stream, layer, rows.parts[:older], mark, next_size)
    return rows.result(), missed


def _begin(stream: ExpertStream, layer: int, rows: _Rows, hits: NDArray[Any], missed: int) -> NDArray[Any]:
    """Compute the hits now where that is better than after the first Need; those that are left for then."""
    capacity = stream.residency.capacity(layer)
    room = len(hits) + _wave_size(len(hits) + missed, missed, capacity) <= capacity
    if not room or len(hits) >= missed:  # the longer half begins first
        rows.compute(hits)
        hits = hits[:0]
    if not room:  # the hits are given up as the loader asks
        stream.finish()
    return hits


def _split(stream: ExpertStream, layer: int, distinct: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
    """The experts that are resident, marked as read, and those that are missing."""
    slots = stream.residency.table(layer)[distinct]
    here = slots != ABSENT
    stream.residency.read(layer, slots[here])
    return distinct[here], distinct[~here].tolist()


def _wave_size(distinct: int, missing: int, capacity: int) -> int:
    """All that are missing, where they and the hits fit; else half the bank, so that two waves fit side by side."""
    return missing if distinct <= capacity else max(1, capacity // 2)


def _make_room(stream: ExpertStream, layer: int, older: Sequence[mx.array], mark: int, next_size: int) -> None:
    """End what the next wave must not hold: the earlier waves' graphs, and this one's where both do not fit."""
    mx.eval(older)
    stream.residency.finished(before=mark)
    if len(stream.residency.held(layer)) + next_size > stream.residency.capacity(layer):
        stream.finish()
