"""A replay with time: reads on a disk of given bandwidth, compute of given length, prefetching by a predictor.

The disk does one read at a time. A demand waits for the read under way, then for its own; prefetches wait for demands.
A prefetch takes a FREE slot of the reserve, the reserve is then filled up again, and it is taken back when its layer
has passed and its read has not begun. The policy, the slots and the victims are those of `replay.run`.
"""

from collections import deque
from collections.abc import Mapping

from mtp_loader.policy.interface import Event, layer_of
from mtp_loader.predict.attribution import Attributor
from mtp_loader.predict.blend import LayerShape, Predictor
from mtp_loader.predict.profit import ProfitGate
from mtp_loader.replay.disk import Disk, Machine, Timing
from mtp_loader.replay.run import MakePolicy, Residency, Tally, make_banks, token_count
from mtp_loader.replay.trace import DECODE, PROMPT, Forward, HintLayers, Trace

_GUESSES = 64
_QUEUED = 8


class Prefetching:
    """The loader's side of prefetching for one run of a recording."""

    def __init__(self, trace: Trace, banks: Mapping[int, Residency], machine: Machine, predictor: Predictor) -> None:
        self.trace, self.banks, self.machine, self.predictor = trace, banks, machine, predictor
        self.gate = ProfitGate()
        self.attributor = Attributor()
        self.disk = Disk(machine, {y.layer: y.bytes for y in trace.layers.values()})
        self.started_bytes = 0
        self.guesses: dict[int, tuple[float, int, bool]] = {}  # key -> chance, layers ahead, whether it was read

    def ask(self, now: float) -> None:
        """Queues what the predictor wants and the gate admits, a few at a time, where there are FREE slots."""
        self.disk.advance(now)
        for key, chance in self.predictor.wanted(_GUESSES, _AnyOf(self.banks)):
            if key in self.guesses:
                continue
            ahead = self.predictor.ahead(layer_of(key))
            admitted = self.gate.admits(chance, ahead)
            if admitted:
                self.attributor.predicted(key)
            bank = self.banks[self.trace.layers[layer_of(key)].bank]
            read = len(self.disk.queue) < _QUEUED and admitted and bank.prefetch(key)
            self.guesses[key] = (chance, ahead, read)
            if read:
                self.attributor.prefetched(key)
                self.evicted(bank)
                self.disk.queue.append((key, now))
                self.started_bytes += self.trace.layers[layer_of(key)].bytes

    def evicted(self, bank: Residency) -> None:
        """Takes note of what the bank's last request or prefetch put out."""
        for key in bank.left:
            self.attributor.evicted(key)
            self.disk.done_at.pop(key, None)
        if self.disk.queue and bank.left:
            gone = set(bank.left)
            self.disk.queue = deque(entry for entry in self.disk.queue if entry[0] not in gone)

    def judge(self, event: Event) -> None:
        """The layer's experts are known: which guesses about it were right."""
        for key in [key for key in self.guesses if layer_of(key) <= event.layer]:
            chance, ahead, read = self.guesses.pop(key)
            self.banks[self.trace.layers[layer_of(key)].bank].announced.discard(key)
            if layer_of(key) == event.layer:
                self.gate.judge(chance, ahead, right=key in event.keys)
                if read:
                    self.gate.was_read(right=key in event.keys)

    def promote(self, event: Event, now: float) -> dict[int, float]:
        """Reads under way for the event are waited for, queued ones become demands: what is late, and until when."""
        self.disk.advance(now)
        late: dict[int, float] = {}
        waiting = {key for key, _ in self.disk.queue}
        for key in event.keys:
            if key in waiting:
                self.disk.queue = deque(entry for entry in self.disk.queue if entry[0] != key)
                late[key] = self.disk.demand(event.layer, 1, now)
            elif (done := self.disk.done_at.pop(key, now)) > now:
                late[key] = done
        return late

    def take_back(self, layer: int) -> None:
        """Prefetches for layers that have passed and have not begun free their slots again."""
        kept: deque[tuple[int, float]] = deque()
        for key, asked in self.disk.queue:
            if layer_of(key) > layer:
                kept.append((key, asked))
                continue
            bank = self.banks[self.trace.layers[layer_of(key)].bank]
            bank.take_back(key)
            self.attributor.cancelled(key)
            self.started_bytes -= self.trace.layers[layer_of(key)].bytes
        self.disk.queue = kept


class _AnyOf:
    """Resident in any bank."""

    def __init__(self, banks: Mapping[int, Residency]) -> None:
        self._banks = banks

    def __contains__(self, key: object) -> bool:
        return any(key in b.resident for b in self._banks.values())


class Timeline:
    """Runs a recording through residency, disk and predictor; `timing` and `tallies` grow as it goes."""

    def __init__(
        self,
        trace: Trace,
        make: MakePolicy,
        slots: Mapping[int, int],
        reserve: int,
        machine: Machine,
        predictor: Predictor | None,
    ) -> None:
        self.trace, self.machine = trace, machine
        self.banks = make_banks(trace, make, slots, reserve, ())
        self.ahead = Prefetching(trace, self.banks, machine, predictor or make_predictor(trace))
        self.predicting = predictor is not None
        self.tallies = {PROMPT: Tally(), DECODE: Tally()}
        self.timing = Timing(bandwidth=machine.bandwidth)
        self.now = 0.0

    def run(self) -> None:
        for forward in self.trace.forwards:
            before, began = self.ahead.started_bytes, self.tallies[forward.phase].read_bytes
            self._forward(forward)
            if forward.phase == DECODE:
                prefetched = self.ahead.started_bytes - before
                self.timing.read_bytes += self.tallies[DECODE].read_bytes - began + prefetched

    def _forward(self, forward: Forward) -> None:
        tally, ahead = self.tallies[forward.phase], self.ahead
        tally.forwards += 1
        tally.events += len(forward.events)
        tally.tokens += token_count(forward)
        hints = _by_sender(forward.hints, self.trace)
        if self.predicting:
            ahead.attributor.forward()
            ahead.guesses.clear()
            for bank in self.banks.values():
                bank.announced.clear()
            ahead.predictor.on_start(forward.tokens, forward.step)
            ahead.ask(self.now)
        for event in forward.events:
            self._event(event, forward.phase, tally)
            if self.predicting:
                ahead.judge(event)
                ahead.take_back(event.layer)
                ahead.predictor.on_event(event)
                for layers in hints.get(event.layer, ()):
                    ahead.predictor.on_hint(forward.step, layers)
                ahead.ask(self.now)
            self.now += self.machine.compute_s
            if forward.phase == DECODE:
                self.timing.compute_s += self.machine.compute_s
        if self.predicting:
            ahead.predictor.on_used(forward.tokens, forward.rows)
            ahead.gate.forward_done()

    def _event(self, event: Event, phase: int, tally: Tally) -> None:
        bank = self.banks[self.trace.layers[event.layer].bank]
        size = self.trace.layers[event.layer].bytes
        late = self.ahead.promote(event, self.now)
        disk, read_s = self.ahead.disk, size / self.machine.bandwidth
        behind = max(disk.free_at - self.now, 0.0) if disk.reading not in event.keys else 0.0
        missing = bank.request(event)
        self.ahead.evicted(bank)
        ready = max(late.values(), default=self.now)
        if missing:
            ready = max(ready, disk.demand(event.layer, len(missing), self.now))
            self.ahead.gate.harmed(behind)
        for key in event.keys:
            outcome = self.ahead.attributor.request(key, resident=key not in missing and key not in late)
            if outcome == "covered":
                self.ahead.gate.saved(read_s)
            elif outcome == "displaced":
                self.ahead.gate.harmed(read_s)
            elif key in late:
                self.ahead.gate.saved(max(read_s - (late[key] - self.now), 0.0))
        if phase == DECODE:
            self.timing.stall_s += ready - self.now
        self.now = ready
        tally.requests += len(event.keys)
        tally.misses += len(missing)
        tally.hits += len(event.keys) - len(missing)
        tally.read_bytes += len(missing) * size


def make_predictor(trace: Trace) -> Predictor:
    return Predictor({y.layer: LayerShape(y.experts, y.top_k) for y in trace.layers.values()})


def _by_sender(hints: tuple[HintLayers, ...], trace: Trace) -> dict[int, list[HintLayers]]:
    """Hints by the layer that sent them: the one before the nearest layer they speak of."""
    ids = sorted(trace.layers)
    before = dict(zip(ids[1:], ids, strict=False))
    sent: dict[int, list[HintLayers]] = {}
    for layers in hints:
        sender = before.get(min((y for y, _ in layers), default=-1))
        if sender is not None:
            sent.setdefault(sender, []).append(layers)
    return sent
