"""How a pool of so many bytes is divided into banks, planes and slots. Pure; the front and the loader both use it."""

from mtp_loader.errors import BadRequest
from mtp_protocol.geometry import Bank, BankLayout, Geometry, PoolLayout

# Planes begin on a page of every machine we run on (16 KiB on Apple silicon), so each can be adopted without a copy.
PAGE = 16384


def make_layout(geometry: Geometry, pool_bytes: int, generation: int) -> PoolLayout:
    """The largest layout whose slots take at most `pool_bytes`; plane alignment comes on top (< 16 KiB a plane).

    Banks share the bytes in proportion to their expert bytes; none gets fewer slots than its minimum, nor more than it
    has experts. Raises BadRequest, saying the minimum, when the pool is too small for the model.
    """
    if pool_bytes < geometry.minimum_bytes:
        raise BadRequest(
            f"a pool of {pool_bytes} bytes is too small for this model: at least {geometry.minimum_bytes} are needed"
        )
    offset, banks = 0, []
    for bank, slots in zip(geometry.banks, _divide(geometry, pool_bytes), strict=True):
        offsets = []
        for plane in bank.planes:
            offsets.append(offset)
            offset += _pages(slots * plane.row_bytes)
        banks.append(BankLayout(bank.bank, slots, tuple(offsets)))
    return PoolLayout(generation, offset, tuple(banks))


def experts_of(geometry: Geometry, bank: Bank) -> int:
    """How many experts there are in all layers of `bank`: more slots would be of no use."""
    return sum(layer.experts for layer in geometry.layers if layer.bank == bank.bank)


def reserve_slots(setting: int | None, slots: int, minimum: int, experts: int) -> int:
    """FREE slots to keep ahead in a bank of `slots` whose layers have `experts`; `setting` None chooses.

    A reserve takes recalls off the critical path and costs residency, so it is about 2 % of the bank, at most two
    tokens' experts of a layer; never so large that fewer than `minimum` slots are left, nor larger than the number of
    experts that have no slot anyway: a pool that holds them all gives none up.
    """
    wanted = min(2 * minimum, slots // 48) if setting is None else setting
    return max(0, min(wanted, slots - minimum, experts - slots))


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _divide(geometry: Geometry, pool_bytes: int) -> list[int]:
    """Slots of each bank: proportional to its expert bytes, within its limits, and all of the budget used."""
    banks = geometry.banks
    low = [geometry.minimum_slots(b.bank) for b in banks]
    high = [max(least, experts_of(geometry, b)) for b, least in zip(banks, low, strict=True)]
    slots = [0] * len(banks)
    # Banks that a proportional share would put outside their limits are fixed there; the rest share what is left.
    open_banks, budget = set(range(len(banks))), pool_bytes
    while open_banks:
        weight = sum(high[i] * banks[i].slot_bytes for i in open_banks)
        ideal = {i: budget * high[i] // weight for i in open_banks}
        below = {i for i in open_banks if ideal[i] < low[i]}
        fixed = below or {i for i in open_banks if ideal[i] >= high[i]} or open_banks
        for i in fixed:
            slots[i] = min(max(ideal[i], low[i]), high[i])
            budget -= slots[i] * banks[i].slot_bytes
        open_banks -= fixed
    _spend(slots, high, [b.slot_bytes for b in banks], pool_bytes)
    return slots


def _spend(slots: list[int], high: list[int], slot_bytes: list[int], pool_bytes: int) -> None:
    """Gives the bytes that rounding left over to the banks that hold the smallest part of their experts."""
    left = pool_bytes - sum(n * size for n, size in zip(slots, slot_bytes, strict=True))
    while True:
        fitting = [i for i in range(len(slots)) if slots[i] < high[i] and slot_bytes[i] <= left]
        if not fitting:
            return
        i = min(fitting, key=lambda bank: slots[bank] / high[bank])
        slots[i] += 1
        left -= slot_bytes[i]
