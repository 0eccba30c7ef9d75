"""A cold pool is filled while nothing is asked: with what earlier runs used most, likeliest first.

A bank that has room for all its experts gets all of them, statistics or not: only a layer that is resident as a whole
decodes without a look at its router's ids on the host.
"""

from collections import deque

from mtp_loader.policy.interface import Primed, expert_of, key_of, layer_of
from mtp_loader.pool.slots import SlotTable
from mtp_loader.predict.blend import Predictor

_DEPTH = 4  # reads under way: enough to keep a disk busy, few enough that the first demand soon has it to itself


class WarmFill:
    """What is still to be read; nothing until `begin`."""

    def __init__(self) -> None:
        self._keys: deque[int] = deque()
        self._total = 0

    def begin(self, table: SlotTable, predictor: Predictor) -> None:
        """Chooses what goes into the pool, and tells the policies what the statistics know of it."""
        keys: list[int] = []
        for bank in table.banks:
            layers = [y for y in predictor.uses if table.bank_of(y) is bank]
            if isinstance(bank.policy, Primed):  # or the first evictions would be blind, and undo the warm start
                for layer in layers:
                    if frequencies := predictor.frequencies(layer):
                        bank.policy.prime(layer, frequencies)
            likely = predictor.likely(bank.slots.limit - bank.reserve, layers)
            keys += likely
            if bank.experts <= bank.slots.limit:
                every = {key_of(y, e) for y in layers for e in range(len(predictor.uses[y]))}
                keys += sorted(every.difference(likely))  # layer by layer, as they lie on the disk
        self._keys, self._total = deque(keys), len(keys)

    @property
    def share(self) -> float:
        """How far it is, 0..1; 1 when there is nothing to do."""
        return 1.0 - len(self._keys) / self._total if self._total else 1.0

    def pump(self, table: SlotTable) -> None:
        """Begins what there is room for."""
        while self._keys and not table.open_tickets and table.prefetches_under_way < _DEPTH:
            key = self._keys.popleft()
            bank = table.bank_of(layer_of(key))
            if bank is None or len(bank.slots.free) <= bank.reserve or key in table.present:
                continue
            if not table.prefetch(layer_of(key), expert_of(key)):
                self._keys.appendleft(key)
                return
