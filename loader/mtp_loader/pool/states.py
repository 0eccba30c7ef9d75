"""The states of one bank's slots and the only ways from one to the next: the four slot rules in code.

1. A slot's bytes change only while it is FILLING, and only the loader writes them: `take` is what a read begins with.
2. It becomes FILLING only from FREE.
3. It goes from RECALLED to FREE only by `release` (the engine's answer) or `engine_gone` (dead, or its map dropped).
4. The engine may read any slot it was told of, so a told slot is never freed directly: `recall` asks for it.
"""

from enum import IntEnum

from mtp_loader.errors import LoaderBug


class State(IntEnum):
    FREE = 0
    FILLING = 1
    RESIDENT = 2
    RECALLED = 3
    RETIRED = 4  # beyond the limit of a pool that was made smaller: as good as not there


class SlotStates:
    """`rows` slots of one bank, of which those below `limit` are used. Owned by the slot table, touched by no one else.

    Every transition is O(1). `slot_of` maps an expert's key to the slot it fills or is resident in; a RECALLED slot
    keeps its key until it is released, but is not in `slot_of`: its expert counts as gone.
    """

    def __init__(self, rows: int) -> None:
        self.limit = rows
        self.state = bytearray(rows)
        self.key = [-1] * rows
        self.told = bytearray(rows)
        self.free = list(range(rows - 1, -1, -1))
        self.slot_of: dict[int, int] = {}
        self.recalled: set[int] = set()
        self.parting: dict[int, int] = {}  # key -> the RECALLED slot it was last in
        self.leaving: set[int] = set()  # at or beyond the limit and not yet RETIRED
        self.count = [rows, 0, 0, 0, 0]

    def take(self, key: int) -> int:
        """FREE → FILLING: the slot that `key` will be read into."""
        slot = self.free.pop()
        self._move(slot, State.FREE, State.FILLING)
        self.key[slot] = key
        self.slot_of[key] = slot
        return slot

    def filled(self, slot: int) -> None:
        """FILLING → RESIDENT."""
        self._move(slot, State.FILLING, State.RESIDENT)

    def abandon(self, slot: int) -> None:
        """FILLING → FREE: the read failed or never began."""
        self._forget(slot)
        self._to_free(slot, State.FILLING)

    def recall(self, slot: int) -> bool:
        """RESIDENT → RECALLED, true: the engine must be asked. A slot that no engine knows goes to FREE at once."""
        self._forget(slot)
        if not self.told[slot]:
            self._to_free(slot, State.RESIDENT)
            return False
        self._move(slot, State.RESIDENT, State.RECALLED)
        self.recalled.add(slot)
        self.parting[self.key[slot]] = slot
        return True

    def release(self, slot: int) -> bool:
        """RECALLED → FREE. False, changing nothing, for a slot that was not recalled: nobody may give that up."""
        if not 0 <= slot < len(self.state) or self.state[slot] != State.RECALLED:
            return False
        self.recalled.discard(slot)
        if self.parting.get(self.key[slot]) == slot:
            del self.parting[self.key[slot]]
        self.told[slot] = 0
        self._to_free(slot, State.RECALLED)
        return True

    def engine_gone(self) -> None:
        """Nobody reads any slot: what was recalled is FREE, what is resident is known to no one."""
        for slot in list(self.recalled):
            self.release(slot)
        self.told = bytearray(len(self.state))

    def residents(self) -> list[int]:
        """The RESIDENT slots, ascending."""
        return [slot for slot, state in enumerate(self.state) if state == State.RESIDENT]

    def set_limit(self, limit: int) -> None:
        """Slots at or beyond `limit` leave as they become FREE; slots that came back below it are FREE again."""
        self.limit = limit
        for slot, state in enumerate(self.state):
            if slot >= limit and state == State.FREE:
                self._move(slot, State.FREE, State.RETIRED)
            elif slot < limit and state == State.RETIRED:
                self._move(slot, State.RETIRED, State.FREE)
        self.free = [s for s in range(limit - 1, -1, -1) if self.state[s] == State.FREE]
        self.leaving = {s for s in range(limit, len(self.state)) if self.state[s] != State.RETIRED}

    def check(self) -> None:
        """Counts everything again; raises LoaderBug where a counter, list or map disagrees. O(rows)."""
        count = [self.state.count(bytes([state])) for state in range(len(State))]
        mapped = {s for s, state in enumerate(self.state) if state in (State.FILLING, State.RESIDENT)}
        sound = (
            count == self.count
            and sum(count) == len(self.state)
            and len(self.free) == len(set(self.free)) == count[State.FREE]
            and all(self.state[s] == State.FREE and s < self.limit for s in self.free)
            and {s for s, state in enumerate(self.state) if state == State.RECALLED} == self.recalled
            and self.recalled.issuperset(self.parting.values())
            and {self.slot_of.get(self.key[s]) for s in mapped} == mapped
            and len(self.slot_of) == len(mapped)
            and all(self.state[s] in (State.RESIDENT, State.RECALLED) for s, told in enumerate(self.told) if told)
        )
        if not sound:
            raise LoaderBug(f"the slot table is inconsistent: {count} counted, {self.count} kept")

    def _forget(self, slot: int) -> None:
        if self.slot_of.get(self.key[slot]) == slot:
            del self.slot_of[self.key[slot]]

    def _to_free(self, slot: int, source: State) -> None:
        if slot >= self.limit:
            self._move(slot, source, State.RETIRED)
            self.leaving.discard(slot)
            return
        self._move(slot, source, State.FREE)
        self.free.append(slot)

    def _move(self, slot: int, source: State, target: State) -> None:
        if self.state[slot] != source:
            raise LoaderBug(f"slot {slot} is {State(self.state[slot]).name}, not {source.name}")
        self.state[slot] = target
        self.count[source] -= 1
        self.count[target] += 1
