"""One bank's reads under way: how a fill begins, ends, fails or is taken back, and what is pinned. Pure."""

from collections import Counter, deque

from mtp_loader.policy.interface import Policy, expert_of, layer_of
from mtp_loader.pool.demand import Fill, SlotCounters, Ticket
from mtp_loader.pool.effects import CancelFill, Effect, StartFill
from mtp_loader.pool.states import SlotStates
from mtp_protocol.expert_messages import Filled, FillFailed, Resident


class BankFills:
    """`effects` is the table's list, appended to in the order in which things must happen."""

    def __init__(self, bank: int, rows: int, policy: Policy, effects: list[Effect]) -> None:
        self.bank, self.policy = bank, policy
        self.slots = SlotStates(rows)
        self.counters = SlotCounters()
        self.fills: dict[int, Fill] = {}
        self.holds: Counter[int] = Counter()  # slot -> tickets that need it until they end
        self.pins: set[int] = set()
        self.unloaded_pins: deque[int] = deque()
        self.announced: set[int] = set()  # keys read ahead whose layer is still to come: no victims while others are
        self.spare = 0  # FREE slots wanted beside the reserve: for what is to be read ahead
        self.greeted = False  # an engine has said Hello: it is told of every resident expert
        self._effects = effects
        self._early: list[int] = []  # keys being read that the policy has not heard of

    def start(self, key: int, *, demand: bool, early: bool = False) -> int:
        """Begins to read `key` into a FREE slot. The policy hears of it now, so that its order is that of demands;
        `early`: by `hear_early`, which must follow before anything else happens.
        """
        slot = self.slots.take(key)
        self._early.append(key)
        if not early:
            self.hear_early()
        self.fills[slot] = Fill(key, demand)
        self._effects.append(StartFill(self.bank, slot, layer_of(key), expert_of(key), demand))
        return slot

    def hear_early(self) -> None:
        """The policy hears of the reads that began before it chose the victims."""
        for key in self._early:
            if key not in self.pins:
                self.policy.insert(key)
        self._early.clear()

    def filled(self, slot: int) -> list[Ticket]:
        """The read is done; returns the tickets it was the last expert of."""
        fill = self.fills.pop(slot)
        self.slots.filled(slot)
        self.counters.fills += 1
        self.slots.told[slot] = self.greeted
        resident = (self.resident(fill.key),)
        for ticket in fill.waiters:
            ticket.missing.discard(fill.key)
            self._effects.append(Filled(ticket.number, resident, len(ticket.missing)))
        if self.greeted and not fill.waiters:
            self._effects.append(Filled(None, resident))
        return [ticket for ticket in fill.waiters if not ticket.missing]

    def failed(self, slot: int, reason: str) -> list[Ticket]:
        """The read failed; returns the tickets that are over with it."""
        fill = self._abandon(slot)
        self.counters.failed += 1
        for ticket in fill.waiters:
            self._effects.append(FillFailed(ticket.number, layer_of(fill.key), expert_of(fill.key), reason))
        return fill.waiters

    def taken_back(self, slot: int) -> Fill:
        """The prefetch ended before its read began; returns it, for a demand may have come for it meanwhile."""
        self.counters.cancelled += 1
        return self._abandon(slot)

    def refused(self, slot: int) -> None:
        """The prefetch's read had begun: it ends like any other."""
        if slot in self.fills:
            self.fills[slot].cancel = "refused"

    def cancel_prefetch(self, key: int) -> None:
        """Asks to have a prefetch of `key` back, if it is one and its read may not have begun."""
        slot = self.slots.slot_of.get(key, -1)
        fill = self.fills.get(slot)
        if fill is not None and not fill.demand and fill.cancel == "no":
            fill.cancel = "asked"
            self._effects.append(CancelFill(self.bank, slot))

    def pin(self, keys: list[int]) -> None:
        """Holds exactly these keys from now on: they are no candidates of the policy."""
        new = set(keys)
        for key in self.pins - new:
            if key in self.slots.slot_of:
                self.policy.insert(key)
        for key in new:
            self.policy.remove(key)
        self.pins = new
        self.unloaded_pins = deque(key for key in keys if key not in self.slots.slot_of)

    def resident(self, key: int) -> Resident:
        return Resident(layer_of(key), expert_of(key), self.slots.slot_of[key])

    def hold(self, ticket: Ticket, slot: int) -> None:
        """The ticket needs this slot until it ends."""
        ticket.slots.append(slot)
        self.holds[slot] += 1

    def let_go(self, slot: int) -> None:
        self.holds[slot] -= 1
        if not self.holds[slot]:
            del self.holds[slot]

    def _abandon(self, slot: int) -> Fill:
        fill = self.fills.pop(slot)
        self.policy.remove(fill.key)
        self.slots.abandon(slot)
        for ticket in fill.waiters:
            ticket.slots.remove(slot)
            self.let_go(slot)
        return fill
