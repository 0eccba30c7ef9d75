"""One bank's demands and victims, on top of its fills and its slots' states. Pure: no clock, no I/O.

The order of what happens at a demand is fixed, so that a replay can follow it: the victims for all of it (and for the
reserve) are chosen first and in one go, then the missing experts take FREE slots in the order they are queued in.
"""

from collections import deque
from collections.abc import Iterable

from mtp_loader.errors import LoaderBug
from mtp_loader.policy.interface import Policy, expert_of, layer_of
from mtp_loader.pool.demand import Ticket
from mtp_loader.pool.effects import Effect, Evicted, PromoteFill
from mtp_loader.pool.fills import BankFills
from mtp_loader.pool.layout import experts_of, reserve_slots
from mtp_loader.pool.states import State
from mtp_protocol.expert_messages import Filled, Recall
from mtp_protocol.geometry import Bank, Geometry

PIN_BURST = 4  # pins loaded at a time beside the reserve


class BankSlots(BankFills):
    """Serves one bank's demands."""

    def __init__(
        self, bank: Bank, rows: int, geometry: Geometry, policy: Policy, reserve: int | None, to: list[Effect]
    ):
        super().__init__(bank.bank, rows, policy, to)
        self.minimum = geometry.minimum_slots(bank.bank)
        self.experts = experts_of(geometry, bank)
        self.queue: deque[Ticket] = deque()  # tickets with keys that have no slot yet, oldest first
        self.parked: dict[int, Ticket] = {}
        self.writable = False
        self._reserve_setting = reserve

    @property
    def reserve(self) -> int:
        """FREE slots to keep ahead."""
        return reserve_slots(self._reserve_setting, self.slots.limit, self.minimum, self.experts)

    def __contains__(self, key: object) -> bool:
        """Whether `key` may not be a victim: the bank itself is the `protected` that its policy is given."""
        slot = self.slots.slot_of.get(key)  # type: ignore[call-overload]
        return slot is None or key in self.announced or not self._may_recall(slot)

    def refusal(self, experts: int, held: set[int]) -> str | None:
        """Why a wave of `experts` misses beside the `held` slots cannot be resident at once; None when it can."""
        rows, limit = len(self.slots.state), self.slots.limit
        if any(not 0 <= slot < rows for slot in held):
            return f"bank {self.bank} has slots 0 to {rows - 1}"
        if experts + sum(slot < limit for slot in held) > limit:
            return f"a wave of {experts} experts beside {len(held)} held slots does not fit {limit} slots"
        return None

    def demand(self, ticket: Ticket) -> list[int]:
        """Takes in a ticket all of whose keys are `queued`; returns those that are resident already."""
        self.counters.demanded += len(ticket.queued)
        self.holds.update(ticket.slots)
        ready = [key for key in ticket.queued if self._attach(ticket, key)]
        ticket.missing.difference_update(ready)
        absent = [key for key in ticket.queued if key not in self.slots.slot_of]
        ticket.queued = deque(key for key in absent if not self._park(ticket, key))
        if ticket.queued:
            self.queue.append(ticket)
        return ready

    def end(self, ticket: Ticket) -> None:
        """The ticket is over, answered or not: it holds nothing and waits for nothing."""
        for slot in ticket.slots:
            self.let_go(slot)
        ticket.slots.clear()
        self.counters.dropped += len(ticket.queued) + len(ticket.parked)
        for slot in ticket.parked:
            del self.parked[slot]
        ticket.parked.clear()
        if ticket.queued:
            self.queue.remove(ticket)
            ticket.queued.clear()
        for key in ticket.missing:
            fill = self.fills.get(self.slots.slot_of.get(key, -1))
            if fill is not None and ticket in fill.waiters:
                fill.waiters.remove(ticket)
        ticket.missing.clear()

    def begin(self) -> None:
        """Begins to read what was just demanded into the FREE slots that there are: no read waits for a policy.

        `pump` must follow: it chooses the victims and lets the policy hear of these reads, as if they began only then.
        """
        while self.writable and self.queue and self._may_take():
            self._assign(self.queue[0], early=True)

    def pump(self) -> list[Ticket]:
        """Gets slots for what is queued and brings the reserve up; to be called after whatever may have freed one.

        Returns the tickets that came to their end by it.
        """
        ended: list[Ticket] = []
        if self.writable:
            self._recall([s for s in self.slots.leaving if self._may_recall(s)])
            self._recall_victims()
            self.hear_early()
            while self.queue and self._may_take():
                ended += self._assign(self.queue[0])
            while self.unloaded_pins and self.prefetch(self.unloaded_pins[0]):
                self.unloaded_pins.popleft()
        return ended

    def want_spare(self, slots: int) -> None:
        """So many reads ahead wait for a FREE slot. A pool hardly larger than its minimum gives none up for that."""
        self.spare = min(slots, max(0, (self.slots.limit - self.minimum) // 8))

    def prefetch(self, key: int) -> bool:
        """Starts to read `key` into a FREE slot that no demand waits for; true if the key is there or on its way."""
        if key in self.slots.slot_of:
            return True
        if not self.writable or self.queue or not self.slots.free:
            return False
        self.start(key, demand=False)
        self.counters.prefetches += 1
        return True

    def requeue(self, slot: int) -> None:
        """A prefetch was taken back; a demand that came for it meanwhile gets another slot."""
        fill = self.taken_back(slot)
        for ticket in fill.waiters:
            self.counters.covered -= 1
            self._queue(ticket, fill.key)

    def release(self, slot: int) -> bool:
        """The engine gave a slot up; false if nobody had asked for it."""
        if not self.slots.release(slot):
            return False
        if (ticket := self.parked.pop(slot, None)) is not None:
            self._queue(ticket, ticket.parked.pop(slot))
        return True

    def check(self) -> None:
        """Raises LoaderBug if the counters do not add up."""
        self.slots.check()
        c, queued = self.counters, sum(len(t.queued) for t in self.queue) + len(self.parked)
        if c.demanded != c.misses + c.covered + c.dropped + queued:
            raise LoaderBug(f"{c.demanded} experts demanded, but {c} and {queued} queued")
        if c.misses + c.prefetches != c.fills + c.failed + c.cancelled + len(self.fills):
            raise LoaderBug(f"fills started and ended do not match: {c}, {len(self.fills)} under way")

    def _queue(self, ticket: Ticket, key: int) -> None:
        if not ticket.queued:
            self.queue.append(ticket)
        ticket.queued.append(key)

    def _park(self, ticket: Ticket, key: int) -> bool:
        """Lets the ticket wait for what the engine does with the RECALLED slot that has `key`, if there is one."""
        slot = self.slots.parting.get(key)
        if slot is None or slot in self.parked:
            return False
        self.parked[slot] = ticket
        ticket.parked[slot] = key
        self.hold(ticket, slot)
        return True

    def _assign(self, ticket: Ticket, *, early: bool = False) -> list[Ticket]:
        key = ticket.queued.popleft()
        if not ticket.queued:
            self.queue.popleft()
        if key not in self.slots.slot_of:
            slot = self.start(key, demand=True, early=early)
            self.counters.misses += 1
            self.fills[slot].waiters.append(ticket)
            self.hold(ticket, slot)
        elif self._attach(ticket, key):  # an older ticket brought it meanwhile
            ticket.missing.discard(key)
            self._effects.append(Filled(ticket.number, (self.resident(key),), len(ticket.missing)))
            return [] if ticket.missing else [ticket]
        return []

    def _attach(self, ticket: Ticket, key: int) -> bool:
        """Lets the ticket share the slot that has or will have `key`, if there is one. True if it is resident."""
        slot = self.slots.slot_of.get(key)
        if slot is None:
            return False
        self.counters.covered += 1
        self.hold(ticket, slot)
        fill = self.fills.get(slot)
        if fill is None:
            self.counters.in_time += 1
            return True
        fill.waiters.append(ticket)
        if not fill.demand:
            fill.demand = True
            self._effects.append(PromoteFill(self.bank, slot))
        return False

    def _may_recall(self, slot: int) -> bool:
        """No victim is being filled, recalled already, or held by a wave that is not complete."""
        return self.slots.state[slot] == State.RESIDENT and slot not in self.holds

    def _may_take(self) -> bool:
        """A demand may use the last FREE slot: the reserve is there for it."""
        return bool(self.slots.free)

    def _supply(self) -> int:
        """Slots that are FREE or will be without anything more being done.

        A recall pending on a held slot is none: the engine answers it only after the wave that waits here.
        """
        pending = len(self.slots.recalled) - sum(slot in self.slots.recalled for slot in self.holds)
        return len(self.slots.free) + pending + sum(fill.cancel == "asked" for fill in self.fills.values())

    def _recall_victims(self) -> None:
        queued = sum(len(ticket.queued) for ticket in self.queue)
        short = queued - self._supply()
        wanted = short + self.reserve + self.spare + (0 if queued else min(len(self.unloaded_pins), PIN_BURST))
        if wanted > 0:
            victims = self.policy.victims(wanted, self)
            if len(victims) < short and self.announced:
                self.announced.clear()  # rather a guess than a demand that waits
                victims = self.policy.victims(wanted, self)
            self._recall(self.slots.slot_of[key] for key in victims)
            short -= len(victims)
        if short > 0:
            idle = [f.key for f in self.fills.values() if not f.demand and f.cancel == "no"][:short]
            for key in idle:
                self.cancel_prefetch(key)
            short -= len(idle)
        if short > 0:
            self._recall(self._pinned_victims()[:short])

    def _pinned_victims(self) -> list[int]:
        """Rather a pin than a demand that waits for ever."""
        pinned = (self.slots.slot_of.get(key, -1) for key in self.pins)
        return [slot for slot in pinned if slot >= 0 and self._may_recall(slot)]

    def _recall(self, slots: Iterable[int]) -> None:
        asked = []
        for slot in slots:
            key = self.slots.key[slot]
            self.policy.remove(key)
            self.counters.evictions += 1
            if key in self.pins:
                self.unloaded_pins.append(key)
            self._effects.append(Evicted(layer_of(key), expert_of(key)))
            if self.slots.recall(slot):
                asked.append(slot)
        if asked:
            self.counters.recalls += len(asked)
            self._effects.append(Recall(self.bank, tuple(asked)))
