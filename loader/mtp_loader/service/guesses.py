"""What is guessed of the running forward's coming layers, until each layer has run: what was read for it, at what cost.

A guess is right or wrong once its layer's experts are known. A read made for it was worth what the disk gave while no
demand waited; while one did, it was worth nothing to the forward and, where reads slow each other, delayed that demand.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mtp_loader.policy.interface import Event, layer_of
from mtp_loader.pool.slots import SlotTable
from mtp_loader.predict.profit import ProfitGate


@dataclass
class Guess:
    """`chances` by how many layers ahead they were stated. `idle_s` of its read passed while nothing was waited for,
    `waited_s` while a demand was.
    """

    chances: dict[int, float] = field(default_factory=dict)
    read: bool = False
    idle_s: float = 0.0
    waited_s: float = 0.0


class Guesses:
    """By key: those about experts that were not resident, those that keep a resident one, those whose read goes on."""

    def __init__(self, gate: ProfitGate) -> None:
        self._gate = gate
        self.open: dict[int, Guess] = {}
        self._kept: set[int] = set()
        self._late: set[int] = set()  # right, and still being read when it was needed
        self._wrong: set[int] = set()  # wrong, and its read cannot be taken back

    def keep(self, table: SlotTable, key: int) -> None:
        """`key` is resident and will probably be needed: others are given up before it."""
        if (bank := table.bank_of(layer_of(key))) is not None:
            bank.announced.add(key)
            self._kept.add(key)

    def judge(self, table: SlotTable, event: Event, contention: float) -> list[int]:
        """A layer's experts are known. Returns the keys whose reads are to be taken back, if they have not begun."""
        passed = [key for key in self.open if layer_of(key) <= event.layer]
        unwanted = []
        for key in passed:
            guess, right = self.open.pop(key), key in event.keys
            self._release(table, key)
            if layer_of(key) == event.layer:
                for ahead, chance in guess.chances.items():
                    self._gate.judge(chance, ahead, right=right)
            if not guess.read:
                continue
            self._gate.was_read(right=right)
            if key in table.present and guess.idle_s + guess.waited_s == 0.0:  # its read goes on
                (self._late if right else self._wrong).add(key)
                unwanted += [] if right else [key]
            elif right:
                self._gate.saved(guess.idle_s + (1.0 - contention) * guess.waited_s)
            else:
                self._gate.harmed(contention * guess.waited_s)
        self._let_go(table, (key for key in self._kept if layer_of(key) <= event.layer))
        return unwanted

    def forget(self, table: SlotTable) -> list[int]:
        """Another forward begins: no guess about the last one counts any more. Returns as `judge` does."""
        unwanted = [key for key, guess in self.open.items() if guess.read]
        for key in self.open:
            self._release(table, key)
        self.open.clear()
        self._let_go(table, self._kept)
        return unwanted

    def read(self, key: int, idle_s: float, waited_s: float, contention: float) -> None:
        """A read that began as a read ahead is over."""
        if key in self._late:
            self._late.discard(key)
            self._gate.saved(idle_s)
        elif key in self._wrong:
            self._wrong.discard(key)
            self._gate.harmed(contention * waited_s)
        elif (guess := self.open.get(key)) is not None:
            guess.idle_s, guess.waited_s = idle_s, waited_s

    def taken_back(self, key: int) -> None:
        """Its read never began."""
        self._wrong.discard(key)

    def _let_go(self, table: SlotTable, keys: Iterable[int]) -> None:
        gone = set(keys)
        for key in gone:
            self._release(table, key)
        self._kept -= gone

    @staticmethod
    def _release(table: SlotTable, key: int) -> None:
        if (bank := table.bank_of(layer_of(key))) is not None:
            bank.announced.discard(key)


def of_running_forward(events: Collection[Event]) -> int:
    """Where the running forward's events begin among those a Need tells of: the last of which runs now.

    What no earlier Need told is the end of the forward before and all of the running one, or a part of the running one
    only: so it begins where layers last fail to rise.
    """
    layers = [event.layer for event in events]
    return max((i for i in range(1, len(layers)) if layers[i] <= layers[i - 1]), default=0)
