"""Prediction at work: reads ahead what the predictor wants, keeps the books on it, fills a cold pool.

Takes the place of nobody's decision: prefetches go into spare slots, the readers serve demands first, and what is read
ahead changes no token. Everything decided here is decided by pure parts (`predict`); this is the wiring to the slot
table, and the only place with a clock.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mtp_loader.policy.interface import Event, expert_of, key_of, layer_of
from mtp_loader.pool.readers import FillResult
from mtp_loader.pool.slots import SlotTable
from mtp_loader.pool.states import State
from mtp_loader.predict.attribution import Attributor
from mtp_loader.predict.blend import LayerShape, Predictor
from mtp_loader.predict.pace import Pace
from mtp_loader.predict.profit import ProfitGate
from mtp_loader.predict.trial import Trial
from mtp_loader.predict.waits import Contention, Waits
from mtp_loader.replay.trace import DECODE
from mtp_loader.service.guesses import Guess, Guesses, of_running_forward
from mtp_loader.service.told import Minutes, recall_by_layer, recall_by_source
from mtp_loader.service.warm_fill import WarmFill
from mtp_protocol.expert_messages import Fed, Hint, Used
from mtp_protocol.geometry import Geometry

_GUESSES = 64
_EXCLUSIVE = 0.25  # contention above which a read ahead waits until no demand does


class Foresight:
    """One a loader. `threads` readers share the disk; `clock` gives seconds."""

    def __init__(
        self, geometry: Geometry, table: Callable[[], SlotTable], threads: int, clock: Callable[[], float]
    ) -> None:
        self.predictor = Predictor({y.layer: LayerShape(y.experts, y.top_k) for y in geometry.layers})
        self.gate = ProfitGate()
        self.attributor = Attributor()
        self.trial = Trial()
        self.minutes = Minutes(clock())
        self.pace = Pace(threads, [y.layer for y in geometry.layers])
        self.contention = Contention()
        self.warm_fill = WarmFill()
        self._waits = Waits()
        self._guesses = Guesses(self.gate)
        self._table, self._clock = table, clock
        self._waiting: deque[int] = deque()  # admitted, not begun
        self._unlearned: deque[Event] = deque()  # what ran, until there is time to learn from it
        self._at = -1  # the last layer that ran
        self._step = -1  # the forward that was announced last
        self._asked = False
        self._hinted = False  # hints come: what a layer asks for can wait for the hint that follows it

    # -- what the engine says --------------------------------------------------------------------------------------

    def on_fed(self, fed: Fed) -> None:
        """A forward of the model begins, over these tokens."""
        self._begin_forward()
        self._learn()
        self._step = fed.step
        self.predictor.on_start(fed.tokens, fed.step)
        self._ask()
        self.pump()

    def on_hint(self, hint: Hint) -> None:
        if hint.layers:
            self.pace.reached(min(layer for layer, _ in hint.layers) - 1, self._clock())
        self._learn()
        self.predictor.on_hint(hint.step, hint.layers)
        self._hinted = True
        self._ask()
        self.pump()

    def on_need(self, events: Sequence[Event], asked: Collection[int]) -> None:
        """What ran since the last Need, and last the layer that runs now; `asked` of its keys the engine did not have.

        Before the slot table hears of it. Begins nothing and learns nothing: `pump` does, once the demand is served.
        """
        current = of_running_forward(events)
        for i, event in enumerate(events):
            self._happened(event, asked if i == len(events) - 1 else (), running=i >= current)

    def on_used(self, used: Used, late: Sequence[Event]) -> None:
        """A forward is over, or was some time ago: its routing teaches. `late` are layers that no Need told of."""
        for event in late:
            self._happened(event, (), running=used.step >= self._step)
        self._learn()
        routing = [(layer, rows) for layer, rows, _weights in used.routing]
        self.predictor.on_used(used.tokens, routing)
        self.gate.forward_done()
        if used.phase == DECODE:
            self.trial.reported(self._clock(), (len(used.tokens), len(used.routing)))

    # -- what the pool says ----------------------------------------------------------------------------------------

    def on_evicted(self, layer: int, expert: int) -> None:
        self.attributor.evicted(key_of(layer, expert))

    def on_read(self, result: FillResult) -> None:
        self.pace.read(result.seconds, demand=result.demand)
        self.contention.add(result.beside, result.seconds)
        waited_s = self._waits.within(result.began, result.began + result.seconds)
        key = key_of(result.place.layer, result.place.expert)
        self._guesses.read(key, result.seconds - waited_s, waited_s, self.contention.share)

    def on_cancelled(self, layer: int, expert: int) -> None:
        """A prefetch was taken back before its read began."""
        self.attributor.cancelled(key_of(layer, expert))
        self._guesses.taken_back(key_of(layer, expert))

    def pump(self) -> None:
        """Begins what there is room and time for. Demands are served first: the table and the readers see to that."""
        table = self._table()
        self._waits.note(bool(table.open_tickets), self._clock())
        if self.active:  # else nothing is asked of the predictor before the forward's end, and a reader's news waits
            self._learn()
        if not self._asked and not self._hinted:
            self._ask()
        if not table.open_tickets or self.contention.share < _EXCLUSIVE:
            self._begin_waiting(table)
        table.want_spare(Counter(bank.bank for key in self._waiting if (bank := table.bank_of(layer_of(key)))))
        self.warm_fill.pump(table)

    def tick(self) -> None:
        """Once a second or so."""
        self.minutes.tick(self.attributor.counts, self._clock())

    def warm(self) -> None:
        """From now on, while nothing is asked, the pool is filled (see WarmFill)."""
        self.warm_fill.begin(self._table(), self.predictor)

    # -- prefetching -----------------------------------------------------------------------------------------------

    def _begin_waiting(self, table: SlotTable) -> None:
        while self._waiting and table.prefetches_under_way < self.pace.depth:
            key = self._waiting.popleft()
            if key in table.present:
                continue
            if not self._begin(table, key):
                self._waiting.appendleft(key)
                return
            self.attributor.prefetched(key)
            self._guesses.open[key].read = True

    def _begin(self, table: SlotTable, key: int) -> bool:
        bank = table.bank_of(layer_of(key))
        if bank is None:
            return False
        bank.announced.add(key)
        if table.prefetch(layer_of(key), expert_of(key)):
            return True
        bank.announced.discard(key)
        return False

    def _ask(self) -> None:
        table, guesses = self._table(), self._guesses.open
        self._asked = True
        self._waiting.clear()
        if not self.active:  # guesses nobody reads for are not worth the second core
            return
        for key, chance in self.predictor.wanted(_GUESSES):
            ahead = self.predictor.ahead(layer_of(key))
            admitted = self.gate.admits(chance, ahead)
            if key in table.present:
                if admitted:
                    self._guesses.keep(table, key)
                continue
            guess = guesses.setdefault(key, Guess())
            guess.chances[ahead] = chance
            if admitted and not guess.read:
                self.attributor.predicted(key)
                self._waiting.append(key)

    def _happened(self, event: Event, asked: Collection[int], *, running: bool) -> None:
        table = self._table()
        if running and event.layer <= self._at:
            self._begin_forward()
        for key in event.keys:
            resident = key not in asked or self._state(key) == State.RESIDENT
            if self.attributor.request(key, resident=resident) == "displaced":
                self.gate.harmed(self.pace.read_s)
        if not running:
            return
        self._at = event.layer
        self.pace.reached(event.layer, self._clock())
        self._take_back(table, self._guesses.judge(table, event, self.contention.share))
        self._unlearned.append(event)
        self._asked = False

    def _begin_forward(self) -> None:
        table = self._table()
        self._at = -1
        self._hinted = False
        self.attributor.forward()
        self._take_back(table, self._guesses.forget(table))

    def _take_back(self, table: SlotTable, keys: Sequence[int]) -> None:
        self._waiting = deque(key for key in self._waiting if key in self._guesses.open)
        for key in keys:
            if self._state(key) == State.FILLING:
                table.cancel_prefetch(layer_of(key), expert_of(key))

    def _learn(self) -> None:
        while self._unlearned:
            self.predictor.on_event(self._unlearned.popleft())

    def _state(self, key: int) -> int:
        bank = self._table().bank_of(layer_of(key))
        slot = None if bank is None else bank.slots.slot_of.get(key)
        return State.FREE if bank is None or slot is None else bank.slots.state[slot]

    @property
    def active(self) -> bool:
        """Whether anything is read ahead now, so that the engine's guesses are of use."""
        return self.trial.on and self.gate.active

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
            "prefetch_active": self.active,
            "warm": self.warm_fill.share,
            "prediction": self._told() | {"recall": recall_by_source(self.predictor.meters)},
        }

    def statistics(self) -> Mapping[str, Any]:
        """The same in full: recall at k and 2k by layer and source."""
        return self._told() | {"recall": recall_by_layer(self.predictor.meters)}

    def _told(self) -> dict[str, Any]:
        gate = {"precision_asked": self.gate.precision_asked, "pauses": self.gate.pauses, "active": self.gate.active}
        gate |= {"saved_s": self.gate.balance.saved_s, "harm_s": self.gate.balance.harm_s}
        pace = {"read_s": self.pace.read_s, "layer_s": self.pace.layer_s, "depth": self.pace.depth}
        pace |= {"contention": self.contention.share}
        told = {"attribution": self.attributor.counts.facts(), "gate": gate, "pace": pace}
        return told | {"forward_s": self.trial.facts(), "minutes": self.minutes.told()}
