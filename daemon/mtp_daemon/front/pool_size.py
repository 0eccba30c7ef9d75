"""How many slots the pool uses now: what the user wants of it, less what memory pressure takes, told to the loader."""

import logging

from mtp_daemon.front.lineup import Lineup
from mtp_daemon.front.pressure import Level, PressurePolicy, limits
from mtp_daemon.front.pressure_source import Source
from mtp_protocol import loader_messages as ld

log = logging.getLogger("mtpd")

_EVERY_S = 1.0
# Nobody waits for the answer to these: errands' own numbers begin at 1.
_NO_REF = 0


class PoolSize:
    """Owner of the size in use. A loader starts with the whole region, so each new one is told."""

    def __init__(self, lineup: Lineup, source: Source | None) -> None:
        self.level = Level.NONE
        self._lineup, self._source = lineup, source
        self._policy = PressurePolicy()
        self._wanted: tuple[int, ...] | None = None
        self._told: tuple[int, tuple[int, ...]] | None = None
        self._next = 0.0

    @property
    def slots(self) -> tuple[int, ...] | None:
        """Of each bank, bank by bank; None before there is a pool."""
        layout, geometry = self._lineup.layout, self._lineup.geometry
        if layout is None or geometry is None:
            return None
        wanted = self._wanted or tuple(bank.slots for bank in layout.banks)
        minimum = tuple(geometry.minimum_slots(bank.bank) for bank in geometry.banks)
        return limits(self._policy.share, wanted, minimum)

    @property
    def held_bytes(self) -> int:
        """Memory that the dense weights and the pool's filled slots take now."""
        lineup = self._lineup
        dense, filled = lineup.facts.get("dense_bytes"), lineup.loader.facts.get("resident")
        held = dense if isinstance(dense, int) and lineup.engine.state == "ready" else 0
        if lineup.layout is not None and isinstance(filled, int):
            held += lineup.layout.nbytes * filled // sum(bank.slots for bank in lineup.layout.banks)
        return held

    def want(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The user asks for this size; what it becomes, now that pressure may hold it down. The caller tells it."""
        self._wanted = slots
        now = self.slots
        assert now is not None  # a size is asked for in slots, which there are only with a pool
        self._told = self._lineup.loader.epoch, now
        return now

    def look(self, now: float) -> None:
        """Call often; looks at the machine once a second, and tells the loader when the size has changed."""
        if now < self._next or self._lineup.loader.state != "ready":
            return
        self._next = now + _EVERY_S
        before = self._policy.share
        if self._source is not None:
            self.level = self._source()
            self._policy.look(self.level, now)
        slots = self.slots
        layout = self._lineup.layout
        if slots is None or layout is None:
            return
        if self._policy.share != before:
            word = "shrinks" if self._policy.share < before else "grows"
            log.info("memory pressure is %s: the pool %s to %s slots", self.level.name.lower(), word, slots)
        epoch = self._lineup.loader.epoch
        if self._told is None or self._told[0] != epoch:
            self._told = epoch, tuple(bank.slots for bank in layout.banks)
        if self._told[1] != slots:
            self._told = epoch, slots
            self._lineup.tell_loader(ld.Resize(_NO_REF, slots))
