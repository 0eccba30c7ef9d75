"""The running loader and the offline replay of what it recorded: the same hits and misses, to the last one."""

import random
from pathlib import Path

import pytest

from mtp_loader.policy.registry import NAMES
from mtp_loader.replay.recording import read_recording
from mtp_loader.replay.run import replay
from mtp_loader.replay.table import maker
from mtp_protocol.expert_messages import Hint, Used
from mtp_protocol.loader_messages import Beat, Stop
from support.checkpoints import make_checkpoint
from support.loader_process import ScriptedEngine, scripted_front

LAYERS, EXPERTS, TOP_K = 3, 8, 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "m", "qwen3_moe", quant="q4g64")


class Forwards:
    """Plays random forwards of one to three tokens, reporting each one forward late, as the engine does."""

    def __init__(self, engine: ScriptedEngine, seed: int) -> None:
        self.engine, self.rng = engine, random.Random(seed)
        self.untold: list[tuple[int, int, tuple[int, ...]]] = []
        self.late: list[Used] = []
        self.told: dict[int, int] = {}
        self.hits = self.misses = 0

    def favourite(self, layer: int) -> int:
        """Experts differ in how often they are wanted, or every policy would do alike."""
        return min(self.rng.randrange(EXPERTS), self.rng.randrange(EXPERTS)) ^ layer

    def row(self, layer: int) -> tuple[int, ...]:
        chosen: dict[int, None] = {}
        while len(chosen) < TOP_K:
            chosen[self.favourite(layer)] = None
        return tuple(chosen)

    def forward(self, step: int) -> None:
        tokens = self.rng.randint(1, 3)
        routing, hits, misses = [], 0, 0
        for layer in range(LAYERS):
            rows = tuple(self.row(layer) for _ in range(tokens))
            weights = tuple((0.75, self.rng.randint(1, 63) / 64) for _ in rows)
            distinct = tuple(sorted({e for row in rows for e in row}))
            self.untold.append((layer, tokens, distinct))
            self.told[step] = self.told.get(step, 0)
            missing = self.demand(step, layer, distinct)
            hits, misses = hits + len(distinct) - missing, misses + missing
            routing.append((layer, rows, weights))
        self.late.append(Used(step, 1, tuple(range(tokens)), tuple(routing), hits, misses))
        self.report(keep=1)
        self.hits, self.misses = self.hits + hits, self.misses + misses

    def demand(self, step: int, layer: int, distinct: tuple[int, ...]) -> int:
        where = self.engine.where
        held = tuple(where[layer, e] for e in distinct if (layer, e) in where)
        missing = tuple(e for e in distinct if (layer, e) not in where)
        if missing:
            assert self.engine.fetch(layer, missing, held, events=tuple(self.untold)) is None
            self.untold.clear()
            self.told = dict.fromkeys(self.told, LAYERS) | {step: layer + 1}
        return len(missing)

    def report(self, keep: int) -> None:
        while len(self.late) > keep:
            used = self.late.pop(0)
            told = self.told.pop(used.step)
            self.untold = self.untold[LAYERS - told :] if told < LAYERS else self.untold
            self.engine.send(Used(used.step, 1, used.tokens, used.routing, used.hits, used.misses, told))


@pytest.mark.parametrize(("policy", "slots", "reserve"), [(n, 12, 1) for n in NAMES] + [("lru", 7, 0), ("lru", 23, 3)])
def test_a_replay_counts_what_the_loader_counted(
    tmp_path: Path, model: Path, policy: str, slots: int, reserve: int
) -> None:
    """Recalls ahead, layers told of late, forwards reported late: a replay follows the loader in all of it.

    Without prefetching: what is read ahead, and so what it displaces, depends on how fast the disk was.
    """
    file = tmp_path / "routing"
    settings = {"policy": policy, "reserve": reserve, "record_routing": str(file)}
    with scripted_front(tmp_path, model, **settings) as front:
        engine = ScriptedEngine(front, front.start(slots))
        engine.greet()
        played = Forwards(engine, seed=slots)
        for step in range(60):
            played.forward(step)
        played.report(keep=0)
        facts = front.await_fact("requests", lambda n: n == played.hits + played.misses)
        front.send(Stop(5.0))
        assert front.process is not None and front.process.wait(30) == 0
    tallies = replay(read_recording(file), maker(policy), {0: slots}, reserve).values()
    assert sum(t.requests for t in tallies) == facts["requests"]
    assert sum(t.misses for t in tallies) == facts["misses"] == played.misses
    assert sum(t.read_bytes for t in tallies) == facts["bytes_read"]


def test_hints_that_are_always_wrong_change_no_byte(tmp_path: Path, model: Path) -> None:
    """Guesses cost spare reads at most; demands are served, with the right bytes, and the books add up."""
    misses = {}
    for prefetch in (False, True):
        with scripted_front(tmp_path, model, prefetch=prefetch, state_dir=str(tmp_path / "state")) as front:
            engine = ScriptedEngine(front, front.start(12))
            engine.greet()
            played = Forwards(engine, seed=5)
            for step in range(40):
                wrong = tuple((7 ^ layer, 0.9) for layer in range(LAYERS))
                hint = tuple((layer, (pair,)) for layer, pair in enumerate(wrong))
                engine.send(Hint(step, hint))
                played.forward(step)
                for (layer, expert), slot in engine.where.items():
                    assert front.slot_is(layer, expert, slot)
            played.report(keep=0)
            front.await_fact("requests", lambda n: n == played.hits + played.misses)  # noqa: B023
            misses[prefetch] = played.misses
    assert misses[True] <= 1.05 * misses[False] + 2


def test_statistics_that_cannot_be_written_cost_nothing_else(tmp_path: Path, model: Path) -> None:
    """The state directory cannot be made; answers go on and the end is clean, with a line in the log."""
    (tmp_path / "file").touch()
    with scripted_front(tmp_path, model, prefetch=True, state_dir=str(tmp_path / "file" / "state")) as front:
        engine = ScriptedEngine(front, front.start(12))
        engine.greet()
        played = Forwards(engine, seed=1)
        played.forward(0)
        played.report(keep=0)
        front.await_fact("requests", lambda n: n > 0)
        front.send(Stop(5.0))
        assert front.process is not None and front.process.wait(30) == 0
        assert "statistics were not written" in front.errors.read_text()


def test_a_second_start_is_warm(tmp_path: Path, model: Path) -> None:
    """The pool is filled with what an earlier run used most before anything is asked, and the beat says how far."""
    settings = {"prefetch": True, "warm_start": True, "reserve": 1, "state_dir": str(tmp_path / "state")}
    with scripted_front(tmp_path, model, **settings) as front:
        engine = ScriptedEngine(front, front.start(12))
        engine.greet()
        played = Forwards(engine, seed=1)
        for step in range(20):
            played.forward(step)
        played.report(keep=0)
        front.send(Stop(5.0))
        assert front.process is not None and front.process.wait(30) == 0
        assert "no statistics at" in front.errors.read_text()
        front.lifeline.close()
        again = ScriptedEngine(front, front.start(12))
        before = front.await_fact("warm", lambda share: share == 0.0)
        assert before["resident"] == 0 and before["learned"] is True and "taken from" in before["statistics"]
        again.greet()
        facts = front.await_message(Beat, lambda b: b.facts["warm"] == 1.0 and not b.facts["filling"]).facts
        assert facts["resident"] >= 10 and facts["requests"] == 0
