"""What the slot table wants done is done here: reads by the reader threads, words to the engine by `send`."""

from collections.abc import Callable

from mtp_loader.policy.interface import expert_of, layer_of
from mtp_loader.pool.effects import CancelFill, EngineMessage, Evicted, PromoteFill, ResizeDone, StartFill, merged
from mtp_loader.pool.expert_reader import Place
from mtp_loader.pool.readers import ReaderThreads
from mtp_loader.pool.region import PoolRegion
from mtp_loader.pool.slots import SlotTable
from mtp_loader.service.watch import Watch
from mtp_protocol.expert_messages import Filled, FillFailed, Hinting, Limit, NotWelcome, Recall, Welcome

Send = Callable[[EngineMessage | Welcome | NotWelcome | Limit | Hinting], None]


class Orders:
    """Drives the readers; `watch` hears of what is given up."""

    def __init__(self, readers: ReaderThreads, send: Send, watch: Watch) -> None:
        self._readers, self._send, self._watch = readers, send, watch

    def carry_out(self, table: SlotTable, region: PoolRegion, on_resized: Callable[[tuple[int, ...]], None]) -> None:
        """All effects in the table's order; answers that make more to do are taken up at once."""
        while effects := table.drain():
            for effect in merged(effects):
                match effect:
                    case StartFill(bank, slot, layer, expert, demand):
                        self._readers.submit(region, Place(bank, slot, layer, expert), demand=demand)
                    case PromoteFill(bank, slot):
                        self._readers.promote(bank, slot)
                    case CancelFill(bank, slot):
                        self._take_back(table, bank, slot)
                    case ResizeDone(limits):
                        region.punch(limits)
                        on_resized(limits)
                    case Recall() | Filled() | FillFailed():
                        self._send(effect)
                    case Evicted(layer, expert):
                        self._watch.on_evicted(layer, expert)

    def _take_back(self, table: SlotTable, bank: int, slot: int) -> None:
        if not self._readers.cancel(bank, slot):
            table.cancel_refused(bank, slot)
            return
        key = table.banks[bank].slots.key[slot]
        self._watch.on_cancelled(layer_of(key), expert_of(key))
        table.fill_cancelled(bank, slot)
