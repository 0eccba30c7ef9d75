"""A model engine, model readers and a model pool around a real slot table: what the slot rules promise, checked.

The engine holds slots, builds waves, runs graphs, answers recalls late and dies; its messages and the loader's cross.
Every byte is modelled as the key that a slot holds, so reading a slot that changed under the engine is seen at once.
"""

from collections import deque
from dataclasses import dataclass, field

from mtp_loader.policy.interface import key_of
from mtp_loader.policy.lru import Lru
from mtp_loader.pool.effects import CancelFill, EngineMessage, Evicted, PromoteFill, ResizeDone, StartFill
from mtp_loader.pool.slots import SlotTable
from mtp_loader.pool.states import State
from mtp_protocol.expert_messages import Filled, FillFailed, Need, Recall, Released, Resident
from mtp_protocol.geometry import Bank, BankLayout, Geometry, Layer, Plane, PoolLayout, Quantisation

GARBAGE = -2


def tiny_geometry(layers: int, experts: int, top_k: int, *, banks: int = 1) -> Geometry:
    """`layers` MoE layers a bank, each expert one plane of 4 bytes."""
    plain = Quantisation()
    plane = Plane("gate.weight", "float32", "float32", (1,))
    numbers = [tuple(range(b * layers, (b + 1) * layers)) for b in range(banks)]
    return Geometry(
        "model",
        "tiny",
        True,
        1,
        tuple(Bank(b, (plane,), plain, plain, plain, numbers[b]) for b in range(banks)),
        tuple(Layer(layer, b, experts, top_k) for b in range(banks) for layer in numbers[b]),
    )


def plain_layout(geometry: Geometry, slots: int) -> PoolLayout:
    return PoolLayout(0, 1 << 20, tuple(BankLayout(b.bank, slots, (0,)) for b in geometry.banks))


@dataclass
class Wave:
    layer: int
    experts: frozenset[int]
    ticket: int = -1
    reads: dict[int, int] = field(default_factory=dict)  # expert -> the slot it is read from, once there


class SlotWorld:
    """One bank's engine, readers and pool. Rules of the test call its methods; each checks what must hold."""

    def __init__(self, geometry: Geometry, slots: int, reserve: int | None) -> None:
        self.geometry, self.slots, self.reserve = geometry, slots, reserve
        self.content = [GARBAGE] * slots
        self.to_engine: deque[EngineMessage] = deque()
        self.to_loader: deque[Need | Released] = deque()
        self.reads: dict[int, StartFill] = {}
        self.epoch, self.tickets = 0, 0
        self.told: dict[int, int] = {}  # slot -> key the engine may read there
        self.recalls: set[int] = set()  # asked for and not answered
        self.wave: Wave | None = None
        self.graph: dict[int, int] = {}  # slots an unfinished graph reads, with what it must find
        self.greeted = False
        self.limit = slots
        self.resized: tuple[int, ...] | None = None
        self.new_table()

    def new_table(self) -> None:
        """A loader starts, the first or the next one: reads under way die with the old one, half done."""
        for slot in self.reads:
            self.content[slot] = GARBAGE
        self.reads.clear()
        self.to_engine.clear()
        self.to_loader.clear()
        self.table = SlotTable(
            self.geometry, plain_layout(self.geometry, self.slots), [Lru()], reserve=self.reserve, pin_share=0.5
        )
        self.limit, self.greeted = self.slots, False
        if self.epoch:
            self.table.engine_up(self.epoch)

    # -- the loader's side -----------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Does what the table wants done; the readers take back what they have not begun on every second asking."""
        for _ in range(1000):
            effects = self.table.drain()
            if not effects:
                break
            for effect in effects:
                match effect:
                    case StartFill():
                        self.start_read(effect)
                    case PromoteFill():
                        if (read := self.reads.get(effect.slot)) is not None:
                            self.reads[effect.slot] = StartFill(0, read.slot, read.layer, read.expert, True)
                    case CancelFill():
                        self.answer_cancel(effect)
                    case Evicted():
                        key = key_of(effect.layer, effect.expert)
                        pinned = key in self.table.banks[0].pins
                        assert not pinned or self.queued() or self.limit < self.slots, "a pin was evicted for nothing"
                    case ResizeDone():
                        self.resized = effect.slots
                        assert all(self.table.banks[0].slots.state[s] == State.RETIRED for s in self.tail())
                    case Recall() | Filled() | FillFailed():
                        assert not (isinstance(effect, Recall) and self.waited_for() & set(effect.slots))
                        self.to_engine.append(effect)
        else:
            raise AssertionError("the table asks for ever")
        self.check()

    def start_read(self, order: StartFill) -> None:
        key = key_of(order.layer, order.expert)
        assert order.slot not in self.told, "rule 1: a slot the engine may read is being written"
        assert order.slot not in self.reads, "two writers to a slot"
        assert order.slot < self.limit, "a retired slot is used"
        assert all((r.layer, r.expert) != (order.layer, order.expert) for r in self.reads.values()), "read twice"
        states = self.table.banks[0].slots
        twice = [s for s in range(self.slots) if states.state[s] == State.RESIDENT and states.key[s] == key]
        assert not twice, "a resident expert is read again"
        assert order.demand or not self.queued(), "a prefetch took a slot from a demand"
        self.content[order.slot] = GARBAGE
        self.reads[order.slot] = order

    def answer_cancel(self, order: CancelFill) -> None:
        if order.slot in self.reads and (order.slot + self.tickets) % 2:
            del self.reads[order.slot]
            self.table.fill_cancelled(0, order.slot)
        else:
            self.table.cancel_refused(0, order.slot)

    def finish_read(self, slot: int) -> None:
        order = self.reads.pop(slot)
        self.content[slot] = key_of(order.layer, order.expert)
        self.table.fill_done(0, slot)
        self.carry_out()

    def fail_read(self, slot: int) -> None:
        del self.reads[slot]
        self.table.fill_failed(0, slot, "EIO")
        self.carry_out()

    def waited_for(self) -> set[int]:
        """Slots of the wave whose ticket is open, whether hits or filled for it: none may be recalled now."""
        if self.wave is None or self.wave.ticket not in self.table.open_tickets:
            return set()
        keys = {key_of(self.wave.layer, e) for e in self.wave.experts}
        return {slot for key, slot in self.table.banks[0].slots.slot_of.items() if key in keys}

    def queued(self) -> int:
        return sum(len(ticket.queued) for ticket in self.table.banks[0].queue)

    def tail(self) -> range:
        return range(self.limit, self.slots)

    def hear_engine(self) -> None:
        """The loader receives the engine's next message."""
        match self.to_loader.popleft():
            case Need() as need:
                self.table.need(need)
                assert set(self.table.open_tickets) <= {need.ticket}, "a wave nobody waits for is still served"
            case Released() as released:
                self.table.released(released.bank, released.slots)
        self.carry_out()

    # -- the engine's side -----------------------------------------------------------------------------------------

    def start_engine(self) -> None:
        self.epoch += 1
        self.table.engine_up(self.epoch)
        self.carry_out()

    def say_hello(self) -> None:
        """The engine finished its graphs, dropped its map and says so; the welcome is not delayed."""
        self.finish_graph()
        self.told.clear()
        self.recalls.clear()
        self.to_engine.clear()
        self.to_loader.clear()
        welcome = self.table.hello()
        assert not self.table.open_tickets, "a dead map's demands are still served"
        self.greeted = True
        self.learn(welcome)
        self.carry_out()
        if self.wave is not None:
            self.ask()

    def die(self) -> None:
        """Killed and reaped; what it sent and was sent is dropped for its epoch."""
        self.told.clear()
        self.recalls.clear()
        self.graph.clear()
        self.to_engine.clear()
        self.to_loader.clear()
        self.wave, self.greeted = None, False
        self.table.engine_dead(self.epoch)
        self.carry_out()

    def begin_wave(self, layer: int, experts: frozenset[int]) -> None:
        assert self.wave is None
        self.finish_graph()
        self.wave = Wave(layer, experts)
        self.ask()

    def ask(self) -> None:
        """Needs what is missing of the wave; also after a lost reply, under a new ticket."""
        wave = self.wave
        assert wave is not None
        mapped = self.mapped()
        keys = {e: key_of(wave.layer, e) for e in wave.experts}
        wave.reads = {e: mapped[key] for e, key in keys.items() if key in mapped}
        held = tuple(wave.reads.values())
        missing = tuple(sorted(wave.experts - wave.reads.keys()))
        if not missing:
            return self.run_graph()
        self.tickets += 1
        wave.ticket = self.tickets
        self.to_loader.append(Need(self.tickets, wave.layer, missing, held))

    def run_graph(self) -> None:
        wave = self.wave
        assert wave is not None
        self.graph = {slot: key_of(wave.layer, e) for e, slot in wave.reads.items()}
        self.wave = None
        self.check()

    def finish_graph(self) -> None:
        self.check()
        self.graph.clear()

    def hear_loader(self) -> None:
        """The engine receives the loader's next message."""
        message = self.to_engine.popleft()
        match message:
            case Filled(ticket=ticket, experts=experts):
                self.learn(experts)
                if (wave := self.wave) is not None:  # whatever it came for: a prefetch may cross a demand
                    for r in experts:
                        if r.layer == wave.layer and r.expert in wave.experts:
                            wave.reads.setdefault(r.expert, r.slot)
                    whole = wave.reads.keys() == wave.experts
                    assert whole or ticket != wave.ticket or message.remaining, "the ticket ended without an expert"
                    if whole:
                        self.run_graph()
            case Recall(slots=slots):
                self.recalls.update(slots)
            case FillFailed(ticket=ticket):
                if self.wave is not None and ticket == self.wave.ticket:
                    self.wave = None
        self.check()

    def learn(self, residents: tuple[Resident, ...]) -> None:
        for r in residents:
            self.told[r.slot] = key_of(r.layer, r.expert)

    def lose_reply(self) -> None:
        """The next message is a Filled of the wave and gets lost; the engine asks again."""
        assert self.wave is not None
        self.to_engine.popleft()
        self.ask()

    def busy_slots(self) -> set[int]:
        """What the engine may not give up now: read by a graph, or a hit or a fill of the wave that waits."""
        busy = set(self.graph)
        if self.wave is not None:
            busy |= set(self.wave.reads.values())
        return busy

    def mapped(self) -> dict[int, int]:
        """Where the engine reads a key: the slot told last, for one in a recalled slot may be told in another."""
        return {key: slot for slot, key in self.told.items()}

    def answer_recalls(self, slots: set[int]) -> None:
        ready = tuple(sorted((self.recalls & slots) - self.busy_slots()))
        for slot in ready:
            self.told.pop(slot, None)
            self.recalls.discard(slot)
        if ready:
            self.to_loader.append(Released(0, ready))

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The engine finds in every slot it may read what it was told is there; the table's own books add up."""
        for slot, key in self.told.items():
            assert self.content[slot] == key, f"slot {slot} changed under the engine"
        for slot, key in self.graph.items():
            assert self.content[slot] == key, f"slot {slot} changed under a running graph"
        if not self.table._effects:
            self.table.check_integrity()

    def settle(self) -> None:
        """A fair schedule to the end: every wave that fits must end, and the reserve must come back."""
        if self.epoch and not self.greeted:
            self.say_hello()
        for _ in range(400):
            if not self.one_fair_step():
                break
        else:
            raise AssertionError("the world does not come to rest")
        assert self.wave is None, f"the wave waits for ever: {self.wave}"
        assert self.table.idle and not self.table.open_tickets
        if self.greeted or not self.epoch:
            self.check_rest()

    def one_fair_step(self) -> bool:
        """Demands are read before prefetches, which do not move while a ticket waits."""
        demands = [slot for slot, read in self.reads.items() if read.demand]
        answerable = self.recalls - self.busy_slots()
        if self.to_loader:
            self.hear_engine()
        elif self.to_engine:
            self.hear_loader()
        elif self.graph:
            self.finish_graph()
        elif answerable:
            self.answer_recalls(answerable)
        elif demands:
            self.finish_read(demands[0])
        elif self.reads and not (self.table.open_tickets and not self.queued()):
            self.finish_read(next(iter(self.reads)))
        else:
            return False
        return True

    def check_rest(self) -> None:
        bank = self.table.banks[0]
        assert self.table.count(State.RECALLED) == 0 and self.table.count(State.FILLING) == 0
        if any(bank.slots.key[slot] not in bank.pins for slot in bank.slots.residents()):
            assert self.table.count(State.FREE) >= bank.reserve, "the reserve did not come back"
        assert not bank.slots.leaving, "rows of the pool's tail are still in use"
