"""What the loader tells of itself: a small summary with every beat, all of it when asked."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mtp_loader.pool.expert_reader import ExpertReader
from mtp_loader.pool.states import State
from mtp_loader.service.pool_service import PoolService
from mtp_loader.service.sockets import ExpertSocket, FrontSocket


def facts(service: PoolService) -> dict[str, Any]:
    """The beat's summary: counters since start, and what the slots are doing now."""
    ledger = service.ledger
    summary: dict[str, Any] = {
        "requests": ledger.requests,
        "hits": ledger.hits,
        "misses": ledger.misses,
        "bytes_read": service.bytes_read,
        "experts_read": service.experts_read,
        "read_failures": service.failures,
    }
    if service.open:
        table = service.table
        counters = table.counters
        summary |= {
            "slots": sum(bank.slots.limit for bank in table.banks),
            "resident": table.count(State.RESIDENT),
            "filling": table.count(State.FILLING),
            "recalled": table.count(State.RECALLED),
            "free": table.count(State.FREE),
            "pinned": sum(len(bank.pins) for bank in table.banks),
            "prefetches": counters.prefetches,
            "prefetched_in_time": counters.in_time,
            "evictions": counters.evictions,
        }
    return summary | service.watch.facts()


def statistics(
    service: PoolService, reader: ExpertReader, threads: int, front: FrontSocket, experts: ExpertSocket
) -> Mapping[str, Any]:
    """Everything there is to know: `facts`, the slot counters by bank, the readers, and messages that were dropped."""
    banks = []
    for bank in service.table.banks if service.open else ():
        states = {state.name.lower(): n for state, n in zip(State, bank.slots.count, strict=True)}
        banks.append(states | {"pinned": len(bank.pins), "reserve": bank.reserve} | asdict(bank.counters))
    return (
        facts(service)
        | service.watch.statistics()
        | {
            "banks": banks,
            "forwards": service.ledger.forwards,
            "open_requests": service.ledger.open_requests,
            "read_s": service.read_s,
            "readers": threads,
            "direct_alignment": min((file.alignment for file in reader.files), default=1),
            "stale_messages": experts.stale_messages,
            "bad_messages": experts.bad_messages + front.bad_messages,
            "unsent_messages": experts.unsent_messages,
            "stale_deaths": service.table.stale_deaths if service.open else 0,
        }
    )
