"""What the slot table wants done: orders to the readers, and messages to the engine (those of the wire contract)."""

from dataclasses import dataclass

from mtp_protocol.expert_messages import Filled, FillFailed, Recall


@dataclass(frozen=True, slots=True)
class StartFill:
    """Read this expert into the slot. The table is told by `fill_done` or `fill_failed`, exactly once."""

    bank: int
    slot: int
    layer: int
    expert: int
    demand: bool


@dataclass(frozen=True, slots=True)
class PromoteFill:
    """A prefetch is demanded now: read it with the demands."""

    bank: int
    slot: int


@dataclass(frozen=True, slots=True)
class CancelFill:
    """Take a prefetch back if its read has not begun; answered by `fill_cancelled` or `cancel_refused`."""

    bank: int
    slot: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """This expert was chosen as a victim: it is resident no more, or will be as soon as the engine lets go of it."""

    layer: int
    expert: int


@dataclass(frozen=True, slots=True)
class ResizeDone:
    """No row at or beyond the new limits is used; `slots` are the limits, bank by bank."""

    slots: tuple[int, ...]


Effect = StartFill | PromoteFill | CancelFill | Evicted | ResizeDone | Recall | Filled | FillFailed
EngineMessage = Recall | Filled | FillFailed


def merged(effects: list[Effect]) -> list[Effect]:
    """Neighbouring answers to one ticket as one message; the order stays."""
    result: list[Effect] = []
    for effect in effects:
        last = result[-1] if result else None
        if isinstance(effect, Filled) and isinstance(last, Filled) and effect.ticket == last.ticket:
            result[-1] = Filled(effect.ticket, last.experts + effect.experts, effect.remaining)
        else:
            result.append(effect)
    return result
