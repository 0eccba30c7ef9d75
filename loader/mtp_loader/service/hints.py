"""Prefetch of what the engine announces: into spare slots only, and taken back once the layer has been computed.

The engine's hints are its next layers' gates on the present hidden. Here they are taken as they come, best weight
first, at most a token's experts a layer; a read that is not worth its slot is the policy's business afterwards.
"""

from collections.abc import Callable, Iterable

from mtp_loader.pool.slots import SlotTable
from mtp_protocol.expert_messages import Hint
from mtp_protocol.geometry import Geometry


class HintPrefetch:
    """Turns hints into prefetches. `in_flight_limit` bounds the reads it has under way at a time."""

    def __init__(self, geometry: Geometry, table: Callable[[], SlotTable], in_flight_limit: int) -> None:
        self._top_k = {layer.layer: layer.top_k for layer in geometry.layers}
        self._experts = {layer.layer: layer.experts for layer in geometry.layers}
        self._table, self._limit = table, in_flight_limit
        self._wanted: dict[int, list[int]] = {}  # layer -> experts announced and not begun
        self._begun: dict[int, set[int]] = {}  # layer -> experts whose read was asked for

    def on_hint(self, hint: Hint) -> None:
        """A newer hint for a layer replaces the older one."""
        for layer, experts in hint.layers:
            if layer in self._top_k:
                best = sorted(experts, key=lambda pair: -pair[1])[: self._top_k[layer]]
                self._wanted[layer] = [e for e, _weight in best if 0 <= e < self._experts[layer]]
        self.pump()

    def on_layer(self, layer: int, experts: Iterable[int]) -> None:
        """What the layer needs is known: other prefetches for it are taken back where they have not begun."""
        self._wanted.pop(layer, None)
        for expert in self._begun.pop(layer, set()).difference(experts):
            self._table().cancel_prefetch(layer, expert)

    def on_forward_end(self) -> None:
        """All layers are computed; what was announced for the next forward's first layers stays."""
        self._begun = {layer: e for layer, e in self._begun.items() if layer in self._wanted}

    def pump(self) -> None:
        """Starts what there are spare slots for, nearest layer first."""
        table = self._table()
        for layer in sorted(self._wanted):
            waiting = self._wanted[layer]
            while waiting and table.prefetches_under_way < self._limit:
                if not table.prefetch(layer, waiting[0]):
                    return
                self._begun.setdefault(layer, set()).add(waiting.pop(0))
            if not waiting:
                del self._wanted[layer]
