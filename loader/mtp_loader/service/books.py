"""Whether everything the loader counts adds up."""

from mtp_loader.errors import LoaderBug
from mtp_loader.pool.slots import SlotTable
from mtp_loader.service.ledger import RequestLedger
from mtp_protocol.geometry import Geometry


def check_books(table: SlotTable, ledger: RequestLedger, geometry: Geometry, bytes_read: int) -> None:
    """Slots, requests and bytes; raises LoaderBug where something does not add up. O(slots): for idle moments.

    pinned + resident + filling + recalled + free == slots; hits + misses == requests, as far as they are reported;
    bytes == misses x size + prefetches x size, those that failed or were taken back left out.
    """
    table.check_integrity()
    if ledger.open_requests < 0:
        raise LoaderBug(f"{ledger.requests} requests, but {ledger.hits} hits and {ledger.misses} misses")
    expected = 0
    for bank in table.banks:
        c = bank.counters
        expected += (c.misses + c.prefetches - c.failed - c.cancelled) * geometry.banks[bank.bank].source_bytes
    if table.idle and bytes_read != expected:
        raise LoaderBug(f"{bytes_read} bytes were read; misses and prefetches make {expected}")
