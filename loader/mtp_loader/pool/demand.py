"""What is waiting for slots and reads: tickets, fills under way, and the counters that must add up."""

from collections import deque
from dataclasses import dataclass, field, fields
from typing import Literal


@dataclass(eq=False)
class Ticket:
    """One `Need`: `queued` keys have no slot yet, `missing` are all keys that are not resident yet.

    `parked` are keys in a RECALLED slot. The engine had not been told of it when it asked, else it would not have; by
    now it has been, and takes the expert from there. Only if it gives the slot up instead is the expert read again.
    `slots` are what the ticket holds until it ends, so that its wave is complete when it is answered: the engine's
    hits, and every slot assigned to it. None of them is a victim before that.
    """

    number: int
    layer: int
    queued: deque[int]
    missing: set[int]
    slots: list[int]
    parked: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Fill:
    """A slot being read into: for `waiters`, or a prefetch while there are none and never were (`demand` false).

    `cancel` says whether a prefetch was asked back, and what the readers answered.
    """

    key: int
    demand: bool
    waiters: list[Ticket] = field(default_factory=list)
    cancel: Literal["no", "asked", "refused"] = "no"


@dataclass
class SlotCounters:
    """One bank's counters since the loader started.

    `demanded` experts were asked for by Needs; each was a `miss` (a read was started for it), `covered` (resident or
    on its way already), `dropped` (its ticket ended first) or is queued still. `in_time` of the covered ones were
    resident. `failed` and `cancelled` fills moved no bytes that count.
    """

    demanded: int = 0
    misses: int = 0
    covered: int = 0
    in_time: int = 0
    dropped: int = 0
    prefetches: int = 0
    fills: int = 0
    failed: int = 0
    cancelled: int = 0
    recalls: int = 0
    evictions: int = 0
    unasked_releases: int = 0

    def __add__(self, other: "SlotCounters") -> "SlotCounters":
        return SlotCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
