"""The slot table under random interleavings: hypothesis plays the engine, the readers, the front and the wire."""

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mtp_protocol.expert_messages import Filled, Need
from support.slot_model import SlotWorld, tiny_geometry

LAYERS, EXPERTS, TOP_K = 2, 4, 2
ALL = LAYERS * EXPERTS

experts_of_a_wave = st.frozensets(st.integers(0, EXPERTS - 1), min_size=1, max_size=EXPERTS)
layers = st.integers(0, LAYERS - 1)


class SlotMachine(RuleBasedStateMachine):
    """One bank of 2 (the minimum) to 8 slots (everything resident); waves of up to the whole pool."""

    @initialize(slots=st.sampled_from([2, 3, 3, 4, 4, 5, 6, ALL]), reserve=st.sampled_from([None, 0, 0, 1, 2]))
    def open(self, slots: int, reserve: int | None) -> None:
        self.world = SlotWorld(tiny_geometry(LAYERS, EXPERTS, TOP_K), slots, reserve)
        self.world.start_engine()
        self.world.say_hello()

    def up(self) -> bool:
        return hasattr(self, "world") and self.world.greeted

    @precondition(lambda self: self.up() and self.world.wave is None)
    @rule(layer=layers, experts=experts_of_a_wave)
    def wave(self, layer: int, experts: frozenset[int]) -> None:
        self.world.begin_wave(layer, frozenset(sorted(experts)[: self.world.limit]))

    @precondition(lambda self: self.up())
    @rule(steps=st.integers(1, 25))
    def all_goes_well(self, steps: int) -> None:
        for _ in range(steps):
            if not self.world.one_fair_step():
                break

    @precondition(lambda self: self.up() and self.world.wave is None)
    @rule(layer=layers, experts=experts_of_a_wave)
    def wave_is_given_up(self, layer: int, experts: frozenset[int]) -> None:
        """A demand that fails at once: its recalls stay pending, and later waves may hold those very slots."""
        self.wave(layer, experts)
        while self.world.to_loader:
            self.world.hear_engine()
        if self.world.table.open_tickets:
            self.wave_expires()
        while self.world.to_engine:
            self.world.hear_loader()

    @precondition(lambda self: hasattr(self, "world") and self.world.to_loader)
    @rule()
    def loader_hears(self) -> None:
        self.world.hear_engine()

    @precondition(lambda self: hasattr(self, "world") and self.world.to_engine)
    @rule(n=st.integers(1, 3))
    def engine_hears(self, n: int) -> None:
        for _ in range(min(n, len(self.world.to_engine))):
            self.world.hear_loader()

    @precondition(lambda self: hasattr(self, "world") and self.world.reads)
    @rule(pick=st.integers(0, 99))
    def read_ends(self, pick: int) -> None:
        slots = sorted(self.world.reads)
        self.world.finish_read(slots[pick % len(slots)])

    @precondition(lambda self: hasattr(self, "world") and self.world.reads)
    @rule(pick=st.integers(0, 99))
    def read_fails(self, pick: int) -> None:
        slots = sorted(self.world.reads)
        self.world.fail_read(slots[pick % len(slots)])

    @precondition(lambda self: self.up() and self.world.graph)
    @rule()
    def graph_ends(self) -> None:
        self.world.finish_graph()

    @precondition(lambda self: self.up() and self.world.recalls)
    @rule(slots=st.sets(st.integers(0, ALL - 1)))
    def engine_answers(self, slots: set[int]) -> None:
        self.world.answer_recalls(slots)

    @precondition(lambda self: hasattr(self, "world") and self.world.table.open_tickets)
    @rule()
    def wave_expires(self) -> None:
        self.world.table.expire(self.world.table.open_tickets[0], "too late")
        self.world.carry_out()

    @precondition(lambda self: self.up() and self.world.wave and self.world.to_engine)
    @rule()
    def reply_lost(self) -> None:
        message = self.world.to_engine[0]
        if isinstance(message, Filled) and message.ticket is not None:
            self.world.lose_reply()

    @precondition(lambda self: self.up())
    @rule(slot=st.integers(0, ALL - 1))
    def released_unasked(self, slot: int) -> None:
        """A second answer to a recall: it must change nothing, whatever the slot is now."""
        if slot < self.world.slots and slot not in self.world.table.banks[0].slots.recalled:
            self.world.table.released(0, (slot, 10**6, -1))
            self.world.carry_out()

    @precondition(lambda self: self.up() and self.world.tickets)
    @rule(layer=layers)
    def ticket_repeated(self, layer: int) -> None:
        """An old ticket comes again: it is refused and disturbs nobody."""
        waiting = self.world.table.open_tickets
        self.world.table.need(Need(self.world.table._last_ticket, layer, (0, 1), ()))
        self.world.carry_out()
        assert self.world.table.open_tickets == waiting
        self.world.to_engine.pop()

    @precondition(lambda self: hasattr(self, "world"))
    @rule(layer=layers, expert=st.integers(0, EXPERTS - 1))
    def prefetch(self, layer: int, expert: int) -> None:
        self.world.table.prefetch(layer, expert)
        self.world.carry_out()

    @precondition(lambda self: hasattr(self, "world"))
    @rule(layer=layers, expert=st.integers(0, EXPERTS - 1))
    def unwanted(self, layer: int, expert: int) -> None:
        """The readers hear of it with whatever comes next: a demand for the same expert, perhaps."""
        self.world.table.cancel_prefetch(layer, expert)

    @precondition(lambda self: hasattr(self, "world"))
    @rule(pairs=st.lists(st.tuples(layers, st.integers(0, EXPERTS - 1)), max_size=4))
    def pin(self, pairs: list[tuple[int, int]]) -> None:
        self.world.table.pin(pairs)
        self.world.carry_out()

    @precondition(lambda self: self.up() and self.world.wave is None)
    @rule(share=st.floats(0, 1))
    def resize(self, share: float) -> None:
        world = self.world
        limit = max(TOP_K, round(share * world.slots))
        world.limit = limit
        assert world.table.resize([limit]) is None
        world.carry_out()

    @precondition(lambda self: hasattr(self, "world") and self.world.table.engine is not None)
    @rule()
    def engine_dies(self) -> None:
        self.world.die()

    @precondition(lambda self: self.up())
    @rule()
    def stale_death(self) -> None:
        self.world.table.engine_dead(self.world.epoch - 1)
        self.world.carry_out()

    @precondition(lambda self: hasattr(self, "world") and not self.world.greeted and self.world.table.engine is None)
    @rule()
    def engine_starts(self) -> None:
        self.world.start_engine()

    @precondition(
        lambda self: hasattr(self, "world") and not self.world.greeted and self.world.table.engine is not None
    )
    @rule()
    def engine_greets(self) -> None:
        self.world.say_hello()

    @precondition(lambda self: self.up())
    @rule()
    def engine_greets_again(self) -> None:
        self.world.say_hello()

    @precondition(lambda self: hasattr(self, "world"))
    @rule()
    def loader_restarts(self) -> None:
        self.world.new_table()

    @precondition(lambda self: self.up() and self.world.wave is not None)
    @rule()
    def wave_ends(self) -> None:
        """Liveness: whatever happened before, a wave that fits comes to its end."""
        self.world.settle()

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.table.engine is not None:
            self.world.settle()


WALKS = 2000  # enough for every guard that is taken out (tests/pool/test_slot_guards.py)

# How often a walk takes a rule; the others once. Deaths and restarts begin everything anew, so they are rare there.
WEIGHTS = {
    "wave": 6,
    "all_goes_well": 5,
    "wave_is_given_up": 3,
    "loader_hears": 5,
    "engine_hears": 5,
    "read_ends": 4,
    "prefetch": 4,
    "unwanted": 4,
}
RARE = {"engine_dies", "loader_restarts", "engine_greets_again", "read_fails", "wave_expires"}


def walk(seed: int, steps: int = 60) -> None:
    """The machine's rules in random order without hypothesis: many times faster, and not shrunk."""
    rng = random.Random(seed)
    machine = SlotMachine()
    machine.open(slots=rng.choice([2, 3, 3, 4, 4, 5, 6, ALL]), reserve=rng.choice([None, 0, 0, 1, 2]))
    chosen = [r for r in _RULES for _ in range(WEIGHTS.get(r.function.__name__, 1))]
    for _ in range(steps):
        rule = rng.choice(chosen)
        if rule.function.__name__ in RARE and rng.random() < 0.7:
            continue
        if all(holds(machine) for holds in rule.preconditions):
            rule.function(machine, **{name: _ARGUMENTS[name](rng) for name in rule.arguments})
    machine.teardown()


_RULES = SlotMachine.setup_state().rules
_ARGUMENTS: dict[str, Callable[[random.Random], Any]] = {
    "layer": lambda rng: rng.randrange(LAYERS),
    "expert": lambda rng: rng.randrange(EXPERTS),
    "experts": lambda rng: frozenset(rng.sample(range(EXPERTS), rng.randint(1, EXPERTS))),
    "pairs": lambda rng: [(rng.randrange(LAYERS), rng.randrange(EXPERTS)) for _ in range(rng.randint(0, 4))],
    "n": lambda rng: rng.randint(1, 3),
    "steps": lambda rng: rng.randint(1, 25),
    "pick": lambda rng: rng.randrange(100),
    "slot": lambda rng: rng.randrange(ALL),
    "slots": lambda rng: {s for s in range(ALL) if rng.random() < 0.5},
    "share": lambda rng: rng.random(),
}
