"""The loader without its sockets: engine and front in, effects out. One thread calls it.

Needs go to the ledger (what the policy is told), then to the slot table (what is to be done about them); the table's
effects are carried out by the reader threads and by `send`, the way to the engine.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import assert_never

from mtp_loader.errors import LoaderBug
from mtp_loader.policy.interface import Event, key_of
from mtp_loader.policy.registry import make_policy
from mtp_loader.pool.readers import FillResult, ReaderThreads
from mtp_loader.pool.region import PoolRegion
from mtp_loader.pool.slots import SlotTable
from mtp_loader.service.books import check_books
from mtp_loader.service.ledger import RequestLedger
from mtp_loader.service.orders import Orders, Send
from mtp_loader.service.pins import Experts, Pins
from mtp_loader.service.settings import LoaderSettings
from mtp_loader.service.watch import Watch
from mtp_protocol.expert_messages import (
    Bye,
    Fed,
    Hello,
    Hint,
    Hinting,
    Limit,
    Need,
    NotWelcome,
    Released,
    ToLoader,
    Used,
    Welcome,
)
from mtp_protocol.geometry import Geometry

log = logging.getLogger(__name__)


class PoolService:
    """Owns the slot table, the policies and the ledger; drives the readers."""

    def __init__(
        self, geometry: Geometry, settings: LoaderSettings, model: str, readers: ReaderThreads, send: Send
    ) -> None:
        self.geometry, self._settings, self._readers, self._send = geometry, settings, readers, send
        self.ledger = RequestLedger()
        self.bytes_read = 0
        self.experts_read = 0
        self.read_s = 0.0
        self.failures = 0
        self.on_resized: Callable[[tuple[int, ...]], None] = lambda limits: None
        self.watch = Watch(geometry, settings, model, lambda: self._table)
        self._orders = Orders(readers, send, self.watch)
        self._pins = Pins(settings, geometry)
        self._region: PoolRegion | None = None
        self._table: SlotTable | None = None
        self._engine: int | None = None
        self._hinting = True  # what the engine was told
        self._deadlines: dict[int, float] = {}
        self._checked_at = -1

    @property
    def table(self) -> SlotTable:
        """Of the present pool; only while `open`."""
        assert self._table is not None
        return self._table

    @property
    def region(self) -> PoolRegion:
        """The present pool; only while `open`."""
        assert self._region is not None
        return self._region

    @property
    def open(self) -> bool:
        """Whether there is a pool."""
        return self._table is not None

    def open_pool(self, region: PoolRegion) -> None:
        """Uses this region from now on; the one before is left once nothing writes to it any more."""
        old = self._region
        if old is not None and not self._readers.settle(deadline_s=30.0):
            raise LoaderBug("reads into the old pool do not end")
        s = self._settings
        self._region = region
        policies = [make_policy(s.policy) for _ in self.geometry.banks]
        self._table = SlotTable(self.geometry, region.layout, policies, reserve=s.reserve, pin_share=s.pin_share)
        if self._engine is not None:
            self._table.engine_up(self._engine)
        self._table.pin(self._pins.experts)
        self.ledger = RequestLedger()
        self.bytes_read = self.experts_read = 0
        if old is not None:
            old.close()

    # -- the engine ------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> int | None:
        """The epoch of the engine that is heard: the live one, once its predecessor is reported dead."""
        return self._engine if self._table is None else self._table.engine

    def engine_up(self, epoch: int) -> None:
        self._engine = epoch
        if self._table is not None:
            self._table.engine_up(epoch)

    def engine_dead(self, epoch: int) -> None:
        self._engine = None if self._engine == epoch else self._engine
        self.ledger.abandon()
        if self._table is not None:
            self._table.engine_dead(epoch)
            self.carry_out()

    def on_engine(self, message: ToLoader) -> None:
        """One message of the live engine."""
        match message:
            case Hello():
                self._hello(message)
            case Need():
                self._need(message)
            case Released(bank, slots):
                self.table.released(bank, slots)
                self.watch.pump()  # a read ahead may have waited for them
            case Fed():
                self.watch.on_fed(message)
            case Hint():
                self.watch.on_hint(message)
            case Used():
                self._used(message)
            case Bye():
                self.ledger.abandon()
                self.table.bye()
            case _:
                assert_never(message)
        self.carry_out()

    def _hello(self, hello: Hello) -> None:
        ours = self.geometry.fingerprint, self.region.layout.generation
        if (hello.fingerprint, hello.generation) != ours:
            log.error("an engine greets with another model or pool: %s, not %s", hello, ours)
            self._send(NotWelcome("the loader serves another model, or another pool, than this engine: serve again"))
            return
        self.ledger.abandon()
        self._send(Welcome(self.table.hello(), self.region.layout.generation))
        self._send(Limit(self.table.limits))
        self._hinting = True
        self.watch.on_greeting()

    def _need(self, need: Need) -> None:
        events: list[Event] = []
        if self.table.refusal(need) is None:
            asked = {key_of(need.layer, expert) for expert in need.experts}
            events = self.ledger.need(need)
            self.watch.on_need(events, asked)
            self._deadlines[need.ticket] = time.monotonic() + self._settings.demand_limit_s
        self.table.need(need, lambda: self._begun(events))
        self.carry_out()
        self.watch.pump()  # only now: what is read ahead takes no slot and no time from what is needed

    def _begun(self, events: Sequence[Event]) -> None:
        """The reads of a Need that wait for no victim can begin; then the policies hear what ran, and choose."""
        self.carry_out()
        self._readers.hand_over()
        for event in events:
            self._record(event)

    def _used(self, used: Used) -> None:
        late = self.ledger.used(used)
        for event in late:
            self._record(event)
        self.watch.on_used(used, late)
        self.watch.pump()
        if self.watch.hinting != self._hinting:
            self._hinting = self.watch.hinting
            self._send(Hinting(self._hinting))

    def _record(self, event: Event) -> None:
        if (bank := self.table.bank_of(event.layer)) is not None:
            bank.policy.record(event)

    # -- the front -------------------------------------------------------------------------------------------------

    def pin(self, experts: Experts) -> int:
        """See `SlotTable.pin`; remembered for the next start."""
        self._pins.set(experts)
        pinned = self.table.pin(experts)
        self.carry_out()
        return pinned

    def resize(self, limits: tuple[int, ...]) -> str | None:
        """Why not, or None: `on_resized` is called when it is done."""
        reason = self.table.resize(limits)
        if reason is None:
            self._send(Limit(self.table.limits))  # before what is recalled for it
        self.carry_out()
        return reason

    # -- reads -----------------------------------------------------------------------------------------------------

    def on_results(self) -> None:
        """Reads have ended."""
        for result in self._readers.results():
            self._ended(result)
        if self.open:
            self.watch.pump()
            self.carry_out()

    def _ended(self, result: FillResult) -> None:
        place = result.place
        self.watch.on_read(result)
        if result.error is None:
            self.bytes_read += self.geometry.banks[place.bank].source_bytes
            self.experts_read += 1
            self.read_s += result.seconds
            self.table.fill_done(place.bank, place.slot)
            return
        self.failures += 1
        log.error("layer %d expert %d cannot be read: %s", place.layer, place.expert, result.error)
        self.table.fill_failed(place.bank, place.slot, result.error)

    def carry_out(self) -> None:
        """Does what the table wants done, in its order; answers that make more to do are taken up at once."""
        self._orders.carry_out(self.table, self.region, self.on_resized)

    # -- time and order --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second or so: demands that waited too long fail; the books are checked when nothing is under way."""
        self.watch.tick()
        if not self.open:
            return
        now = time.monotonic()
        waiting = set(self.table.open_tickets)
        self._deadlines = {t: at for t, at in self._deadlines.items() if t in waiting}
        for ticket in [t for t, at in self._deadlines.items() if at <= now]:
            log.error("demand %d has waited %g s", ticket, self._settings.demand_limit_s)
            self.table.expire(ticket, f"waited {self._settings.demand_limit_s:g} s for a slot and a read")
        self.carry_out()
        if self.table.idle and self.ledger.requests != self._checked_at:
            self._checked_at = self.ledger.requests
            check_books(self.table, self.ledger, self.geometry, self.bytes_read)
