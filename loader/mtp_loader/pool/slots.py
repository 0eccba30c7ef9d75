"""The slot table: which expert is in which slot, who was told of it, and who waits for what. Pure: no clock, no I/O.

What happens comes in as calls; what is to be done about it collects as effects, which `drain` hands over in the order
in which they must be carried out. The four slot rules are `states.SlotStates`; demands and victims of one bank are
`bank.BankSlots`, the banks side by side `banks.Banks`; here are the engine's life and death and the way of a message
to its bank.

A loader that starts beside a live engine does not know what its predecessor told it. So it is quiet, and writes no
slot, until that engine's `hello` says that it dropped its map, or the front says that it is dead.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from mtp_loader.errors import LoaderBug
from mtp_loader.policy.interface import Policy, expert_of, key_of, layer_of
from mtp_loader.pool.bank import BankSlots
from mtp_loader.pool.banks import Banks
from mtp_loader.pool.demand import Ticket
from mtp_loader.pool.effects import Effect, ResizeDone
from mtp_protocol.expert_messages import Filled, FillFailed, Need, Resident
from mtp_protocol.geometry import Geometry, PoolLayout


class SlotTable(Banks):
    """All banks of one pool. `policies` has one policy a bank; `pin_share` bounds what pins may take of a bank."""

    def __init__(
        self,
        geometry: Geometry,
        layout: PoolLayout,
        policies: Sequence[Policy],
        *,
        reserve: int | None = None,
        pin_share: float = 0.5,
    ) -> None:
        super().__init__(geometry, layout, policies, reserve, pin_share)
        self._tickets: dict[int, tuple[BankSlots, Ticket]] = {}
        self._last_ticket = -1
        self._resizing = False
        self.engine: int | None = None  # the epoch of the engine that may have been told of slots
        self._successor: int | None = None
        self.stale_deaths = 0

    # -- the engine's life -----------------------------------------------------------------------------------------

    def engine_up(self, epoch: int) -> None:
        """The front started an engine. One whose predecessor is not yet reported dead has to wait for that."""
        if self.engine is None or self.engine == epoch:
            self.engine = epoch
        else:
            self._successor = epoch

    def engine_dead(self, epoch: int) -> None:
        """That engine is dead and reaped. Only what that very engine was told of is free; news of others is stale."""
        if self.engine is not None and epoch != self.engine:
            self.stale_deaths += 1
            self._successor = None if epoch == self._successor else self._successor
            return
        self.engine, self._successor = self._successor, None
        self._forget_engine()

    def hello(self) -> tuple[Resident, ...]:
        """The live engine has no map, and nothing it runs reads the pool. Returns what it may read from now on."""
        self._forget_engine()
        self._last_ticket = -1
        resident = []
        for bank in self.banks:
            bank.greeted = True
            for slot in bank.slots.residents():
                bank.slots.told[slot] = 1
                key = bank.slots.key[slot]
                resident.append(Resident(layer_of(key), expert_of(key), slot))
        return tuple(resident)

    def bye(self) -> None:
        """The engine reads no slot any more."""
        self._forget_engine()

    def _forget_engine(self) -> None:
        for number in list(self._tickets):
            self._end(number)
        for bank in self.banks:
            bank.slots.engine_gone()
            bank.greeted = False
            bank.writable = True
        self._pump()

    # -- demands ---------------------------------------------------------------------------------------------------

    def need(self, need: Need, begun: Callable[[], None] = lambda: None) -> None:
        """A wave's misses, in place of whatever was asked before; reads under way go on and are announced.

        `begun` is called when the reads that need no victim can begin, before any victim is chosen: the effects so far
        may be drained, and the policies told what they should know. A Need that cannot be served is answered by
        FillFailed, never left waiting.
        """
        keys = sorted({key_of(need.layer, expert) for expert in need.experts})
        reason = self.refusal(need)
        self._last_ticket = max(self._last_ticket, need.ticket)
        if reason is not None:
            expert = need.experts[0] if need.experts else 0
            self._effects.append(FillFailed(need.ticket, need.layer, expert, reason))
            return
        for number in list(self._tickets):  # the engine waits for one wave at a time
            self._end(number)
        bank = self.banks[self._layers[need.layer].bank]
        ticket = Ticket(need.ticket, need.layer, deque(keys), set(keys), list(dict.fromkeys(need.held_slots)))
        self._tickets[need.ticket] = bank, ticket
        ready = bank.demand(ticket)
        bank.begin()
        begun()
        self._pump()
        if ready or not keys:
            residents = tuple(bank.resident(key) for key in ready)
            self._effects.append(Filled(need.ticket, residents, len(ticket.missing)))
        if need.ticket in self._tickets and not ticket.missing:
            self._end(need.ticket)

    def expire(self, number: int, reason: str) -> None:
        """The ticket waited too long: it is over."""
        key = min(self._tickets[number][1].missing)
        self._effects.append(FillFailed(number, layer_of(key), expert_of(key), reason))
        self._end(number)
        self._pump()

    def released(self, bank: int, slots: Iterable[int]) -> None:
        """The engine gave these up. What it was not asked for is counted and changes nothing."""
        if not 0 <= bank < len(self.banks):
            return
        desk = self.banks[bank]
        for slot in slots:
            desk.counters.unasked_releases += not desk.release(slot)
        self._pump()

    def refusal(self, need: Need) -> str | None:
        """Why this Need cannot be served, now or ever; None when it can."""
        if need.ticket <= self._last_ticket:
            return f"ticket {need.ticket} is not above the last one, {self._last_ticket}"
        layer = self._layers.get(need.layer)
        if layer is None:
            return f"the model has no MoE layer {need.layer}"
        if any(not 0 <= expert < layer.experts for expert in need.experts):
            return f"layer {need.layer} has experts 0 to {layer.experts - 1}"
        return self.banks[layer.bank].refusal(len(set(need.experts)), set(need.held_slots))

    # -- fills -----------------------------------------------------------------------------------------------------

    def fill_done(self, bank: int, slot: int) -> None:
        """The readers are done with this slot and its bytes are right."""
        for ticket in self.banks[bank].filled(slot):
            self._end(ticket.number)
        self._pump()

    def fill_failed(self, bank: int, slot: int, reason: str) -> None:
        """The readers are done with this slot and its bytes are not right."""
        for ticket in list(self.banks[bank].failed(slot, reason)):
            self._end(ticket.number)
        self._pump()

    def fill_cancelled(self, bank: int, slot: int) -> None:
        """The read never began and never will."""
        self.banks[bank].requeue(slot)
        self._pump()

    def cancel_refused(self, bank: int, slot: int) -> None:
        """The read had begun; `fill_done` or `fill_failed` follows or was told already."""
        self.banks[bank].refused(slot)
        self._pump()

    def prefetch(self, layer: int, expert: int) -> bool:
        """Reads an expert before it is asked for, if a FREE slot is to spare; false when it is not and will not be."""
        desk = self.banks[self._layers[layer].bank]
        started = desk.prefetch(key_of(layer, expert))
        desk.pump()
        return started

    def want_spare(self, wanted: Mapping[int, int]) -> None:
        """How many reads ahead wait for a FREE slot, by bank (none for one not named)."""
        for bank in self.banks:
            before = bank.spare
            bank.want_spare(wanted.get(bank.bank, 0))
            if bank.spare > before:
                bank.pump()

    def cancel_prefetch(self, layer: int, expert: int) -> None:
        """The expert is not wanted after all; a demand's read goes on."""
        self.banks[self._layers[layer].bank].cancel_prefetch(key_of(layer, expert))

    # -- pins and size ---------------------------------------------------------------------------------------------

    def pin(self, experts: Iterable[tuple[int, int]]) -> int:
        """Holds exactly these experts, as far as the pins' share goes; returns how many those are."""
        self._set_pins(experts)
        self._pump()
        return sum(len(bank.pins) for bank in self.banks)

    def resize(self, limits: Sequence[int]) -> str | None:
        """Uses only slots below these limits from now on; `ResizeDone` follows. Returns why not, if it cannot be."""
        if (reason := self._set_limits(limits)) is not None:
            return reason
        self._resizing = True
        self._pump()
        return None

    # -- what is to be done, and whether all is well ---------------------------------------------------------------

    def drain(self) -> list[Effect]:
        """The effects since the last call, in the order in which they must be carried out."""
        effects = list(self._effects)
        self._effects.clear()
        return effects

    @property
    def open_tickets(self) -> tuple[int, ...]:
        """Tickets that are not answered in full yet, oldest first."""
        return tuple(self._tickets)

    @property
    def idle(self) -> bool:
        """No ticket waits and nothing is being read."""
        return not self._tickets and not any(bank.fills for bank in self.banks)

    def check_integrity(self) -> None:
        """Counts everything again; raises LoaderBug where something does not add up. O(slots): for idle moments."""
        for bank in self.banks:
            bank.check()
        for number, (_bank, ticket) in self._tickets.items():
            if not ticket.missing:
                raise LoaderBug(f"ticket {number} is answered and still open")
        if not self._tickets and any(bank.holds or bank.queue for bank in self.banks):
            raise LoaderBug("slots are held or queued for, and no ticket is open")

    def _end(self, number: int) -> None:
        bank, ticket = self._tickets.pop(number)
        bank.end(ticket)

    def _pump(self) -> None:
        for bank in self.banks:
            for ticket in bank.pump():
                self._end(ticket.number)
        if self._resizing and not any(bank.slots.leaving for bank in self.banks):
            self._resizing = False
            self._effects.append(ResizeDone(tuple(bank.slots.limit for bank in self.banks)))
