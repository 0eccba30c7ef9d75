"""Prediction at work: reads ahead what the predictor wants, keeps the books on it, fills a cold pool.

Takes the place of nobody's decision: prefetches go into spare slots, the readers serve demands first, and what is read
ahead changes no token. Everything decided here is decided by pure parts (`predict`); this is the wiring to the slot
table, and the only place with a clock.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mtp_loader.policy.interface import Event, Primed, expert_of, key_of, layer_of
from mtp_loader.pool.slots import SlotTable
from mtp_loader.pool.states import State
from mtp_loader.predict.attribution import Attributor
from mtp_loader.predict.blend import LayerShape, Predictor
from mtp_loader.predict.pace import Pace
from mtp_loader.predict.profit import ProfitGate
from mtp_protocol.expert_messages import Hint, Used
from mtp_protocol.geometry import Geometry

log = logging.getLogger(__name__)

_GUESSES = 64
_WARM_DEPTH = 4


class Foresight:
    """One a loader. `threads` readers share the disk; `clock` gives seconds."""

    def __init__(
        self, geometry: Geometry, table: Callable[[], SlotTable], threads: int, clock: Callable[[], float]
    ) -> None:
        self.predictor = Predictor({y.layer: LayerShape(y.experts, y.top_k) for y in geometry.layers})
        self.gate = ProfitGate()
        self.attributor = Attributor()
        self.pace = Pace(threads, [y.layer for y in geometry.layers])
        self._table, self._clock = table, clock
        self._guesses: dict[int, tuple[float, bool]] = {}  # key -> chance, and whether it was read for it
        self._waiting: deque[int] = deque()  # admitted, not begun
        self._asked = False
        self._warm: deque[int] = deque()
        self._warm_total = 0

    # -- what the engine says --------------------------------------------------------------------------------------

    def on_hint(self, hint: Hint) -> None:
        if hint.layers:
            self.pace.reached(min(layer for layer, _ in hint.layers) - 1, self._clock())
        self.predictor.on_hint(hint.step, hint.layers)
        self._asked = False
        self.pump()

    def on_event(self, event: Event, asked: Collection[int] = ()) -> None:
        """One layer's experts, `asked` of which the engine did not have; before the slot table hears of it.

        Begins nothing: `pump` follows once the demand has its slots.
        """
        self.pace.reached(event.layer, self._clock())
        missed = 0
        for key in event.keys:
            resident = key not in asked or self._is_resident(key)
            missed += not resident and not self._under_way(key)
            match self.attributor.request(key, resident=resident):
                case "covered":
                    self.gate.saved(self.pace.read_s)
                case "displaced":
                    self.gate.harmed(self.pace.read_s)
        self._judge(event)
        if missed:
            self.gate.harmed(self._table().prefetches_under_way * self.pace.read_s / self.pace.threads)
        self.predictor.on_event(event)
        self._asked = False

    def on_used(self, used: Used) -> None:
        """A forward is over, or was some time ago: its routing teaches."""
        routing = [(layer, rows) for layer, rows, _weights in used.routing]
        self.predictor.on_used(used.tokens, routing)
        self.gate.forward_done()

    # -- what the pool says ----------------------------------------------------------------------------------------

    def on_evicted(self, layer: int, expert: int) -> None:
        self.attributor.evicted(key_of(layer, expert))

    def on_read(self, seconds: float, *, demand: bool) -> None:
        """A read took so long, from its first byte asked to its last."""
        self.pace.read(seconds, demand=demand)

    def pump(self) -> None:
        """Begins what there is room and time for. Demands are served first: the table and the readers see to that."""
        table = self._table()
        if not self._asked:
            self._asked = True
            self._ask(table)
        while self._waiting and table.prefetches_under_way < self.pace.depth:
            key = self._waiting.popleft()
            if key in table.present:
                continue
            if not self._begin(table, key):
                self._waiting.appendleft(key)
                break
            self.attributor.prefetched(key)
            self._guesses[key] = (self._guesses[key][0], True)
        self._pump_warm(table)

    # -- a cold pool -----------------------------------------------------------------------------------------------

    def warm(self) -> None:
        """From now on, while nothing is asked, the pool is filled with what was used most, likeliest first."""
        table = self._table()
        keys: list[int] = []
        for bank in table.banks:
            layers = [y for y in self.predictor.uses if table.bank_of(y) is bank]
            if isinstance(bank.policy, Primed):  # or the first evictions would be blind, and undo the warm start
                for layer in layers:
                    if frequencies := self.predictor.frequencies(layer):
                        bank.policy.prime(layer, frequencies)
            keys += self.predictor.likely(bank.slots.limit - bank.reserve, layers)
        self._warm = deque(keys)
        self._warm_total = len(keys)

    @property
    def warm_share(self) -> float:
        """How far the warm start is, 0..1; 1 when there is none."""
        return 1.0 - len(self._warm) / self._warm_total if self._warm_total else 1.0

    def _pump_warm(self, table: SlotTable) -> None:
        while self._warm and not table.open_tickets and table.prefetches_under_way < _WARM_DEPTH:
            key = self._warm.popleft()
            bank = table.bank_of(layer_of(key))
            if bank is None or len(bank.slots.free) <= bank.reserve or key in table.present:
                continue
            if not table.prefetch(layer_of(key), expert_of(key)):
                self._warm.appendleft(key)
                return

    # -- prefetching -----------------------------------------------------------------------------------------------

    def _ask(self, table: SlotTable) -> None:
        self._waiting.clear()
        for key, chance in self.predictor.wanted(_GUESSES, table.present):
            if not self._guesses.get(key, (0.0, False))[1]:
                self.attributor.predicted(key)
                self._guesses[key] = (chance, False)
                if self.gate.admits(chance):
                    self._waiting.append(key)

    def _begin(self, table: SlotTable, key: int) -> bool:
        bank = table.bank_of(layer_of(key))
        if bank is None:
            return False
        bank.announced.add(key)
        if table.prefetch(layer_of(key), expert_of(key)):
            return True
        bank.announced.discard(key)
        return False

    def _judge(self, event: Event) -> None:
        """The layer's experts are known: guesses about it are right or wrong, prefetches of the wrong ones end."""
        table = self._table()
        if event.layer <= self.predictor.at:  # another forward begins
            self.attributor.forward()
            self._forget(table, list(self._guesses))
        passed = [key for key in self._guesses if layer_of(key) <= event.layer]
        for key in passed:
            chance, read = self._guesses[key]
            if layer_of(key) == event.layer:
                self.gate.judge(chance, right=key in event.keys, read=read)
        self._forget(table, [key for key in passed if key not in event.keys])
        for key in event.keys:
            if self._guesses.pop(key, None) is not None:
                self._unannounce(table, key)

    def _forget(self, table: SlotTable, keys: list[int]) -> None:
        for key in keys:
            _chance, read = self._guesses.pop(key)
            self._unannounce(table, key)
            if read and self._under_way(key):
                table.cancel_prefetch(layer_of(key), expert_of(key))

    def on_cancelled(self, layer: int, expert: int) -> None:
        """A prefetch was taken back before its read began."""
        self.attributor.cancelled(key_of(layer, expert))

    def _unannounce(self, table: SlotTable, key: int) -> None:
        if (bank := table.bank_of(layer_of(key))) is not None:
            bank.announced.discard(key)

    def _is_resident(self, key: int) -> bool:
        return self._state(key) == State.RESIDENT

    def _under_way(self, key: int) -> bool:
        return self._state(key) == State.FILLING

    def _state(self, key: int) -> int:
        bank = self._table().bank_of(layer_of(key))
        slot = None if bank is None else bank.slots.slot_of.get(key)
        return State.FREE if bank is None or slot is None else bank.slots.state[slot]

    # -- what it tells ---------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """A small summary for every beat."""
        counts = self.attributor.counts
        return {
            "never_predicted": counts.never_predicted,
            "predicted_late": counts.late,
            "evicted_again": counts.evicted_again,
            "coverage": counts.coverage,
            "wasted_per_useful": counts.waste,
            "prefetch_active": self.gate.active,
            "warm": self.warm_share,
        }

    def statistics(self) -> Mapping[str, Any]:
        """Attribution in full, the gate, and recall at k and 2k by layer and source."""
        recall = {
            str(layer): {
                name: {"at_k": m.at_k / m.wanted, "at_2k": m.at_2k / m.wanted, "wanted": m.wanted}
                for name, m in meters.items()
                if m.wanted
            }
            for layer, meters in self.predictor.meters.items()
        }
        gate = {"precision_asked": self.gate.precision_asked, "pauses": self.gate.pauses, "active": self.gate.active}
        pace = {"read_s": self.pace.read_s, "layer_s": self.pace.layer_s, "depth": self.pace.depth}
        return {"attribution": self.attributor.counts.facts(), "gate": gate, "pace": pace, "recall": recall}
