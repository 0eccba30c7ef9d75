"""A real loader process and a scripted engine: what is asked for arrives, with the source's bytes, at any pool size."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from mtp_protocol.expert_messages import FillFailed, Hello, Hint, Need, NotWelcome, Released, Used, Welcome
from mtp_protocol.loader_messages import (
    Beat,
    EngineUp,
    Failed,
    Geometry,
    Pin,
    Pinned,
    Ready,
    Resize,
    Resized,
    Stats,
    StatsRequest,
)
from support.checkpoints import Head, make_checkpoint
from support.loader_process import ScriptedEngine, ScriptedFront, scripted_front

EXPERTS, TOP_K, LAYERS = 8, 2, 3
ALL = EXPERTS * LAYERS


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    plain = make_checkpoint(directory / "plain", "qwen3_moe", quant="q4g64")
    pack(plain, directory / "packed", PackSettings(), lambda line: None)
    return directory / "packed"


@pytest.fixture
def front(tmp_path: Path, packed: Path) -> Iterator[ScriptedFront]:
    with scripted_front(tmp_path, packed) as front:
        yield front


def random_waves(front: ScriptedFront, engine: ScriptedEngine, rounds: int, seed: int) -> None:
    """Waves of a token's experts, layer after layer; the whole wave must be in the pool, with the right bytes."""
    rng = random.Random(seed)
    for step in range(rounds):
        routing, hits, untold, told = [], 0, [], 0
        for layer in range(LAYERS):
            engine.answer_recalls()
            experts = tuple(sorted(rng.sample(range(EXPERTS), TOP_K)))
            held = tuple(engine.where[layer, e] for e in experts if (layer, e) in engine.where)
            missing = tuple(e for e in experts if (layer, e) not in engine.where)
            untold.append((layer, 1, experts))
            if missing:
                assert engine.fetch(layer, missing, held, events=tuple(untold)) is None
                untold, told = [], layer + 1
            for expert in experts:
                assert front.slot_is(layer, expert, engine.where[layer, expert])
            routing.append((layer, (experts,), ((0.5,) * TOP_K,)))
            hits += len(held)
        engine.send(Used(step, 1, (0,), tuple(routing), hits, LAYERS * TOP_K - hits, told))


@pytest.mark.parametrize("slots", [TOP_K, TOP_K + 1, ALL // 2, ALL])
@pytest.mark.parametrize("reserve", [None, 1])
def test_every_wave_arrives_with_the_sources_bytes(front: ScriptedFront, slots: int, reserve: int | None) -> None:
    """Any pool size at the loader's side: from the smallest that works (two slots) to one that holds everything."""
    front.settings["reserve"] = reserve
    engine = ScriptedEngine(front, front.start(slots))
    assert engine.greet().resident == ()
    random_waves(front, engine, 30, seed=slots)
    facts = front.await_fact("requests", lambda n: n == 30 * LAYERS * TOP_K)
    assert facts["hits"] + facts["misses"] == facts["requests"]
    size = front.source.geometry.banks[0].source_bytes
    assert facts["bytes_read"] == facts["misses"] * size
    if slots == ALL:
        assert facts["misses"] <= ALL


@pytest.mark.parametrize("layout", ["mlx", "hf"])
@pytest.mark.parametrize("quant", ["q4g64", None])
def test_an_unpacked_checkpoint_streams_as_well(tmp_path: Path, layout: str, quant: str | None) -> None:
    """Rows that lie anywhere in a file, several reads an expert, a head's experts among them."""
    model = make_checkpoint(
        tmp_path / "m",
        "qwen3_next",
        quant=None if layout == "hf" else quant,
        layout=layout,  # type: ignore[arg-type]
        head=Head("inside", "stacked" if layout == "mlx" else "per_expert"),
    )
    with scripted_front(tmp_path, model) as front:
        engine = ScriptedEngine(front, front.start(6))
        engine.greet()
        for layer in front.source.geometry.layers:
            assert engine.fetch(layer.layer, (0, 5)) is None
            for expert in (0, 5):
                assert front.slot_is(layer.layer, expert, engine.where[layer.layer, expert])


def test_hits_misses_and_bytes_of_a_hand_counted_trace(front: ScriptedFront) -> None:
    """Requests, hits, misses and bytes, each counted by hand; layers without a miss are told of by the next."""
    engine = ScriptedEngine(front, front.start(ALL))
    engine.greet()
    tokens, weights = (7,), ((1.0, 1.0),)
    engine.fetch(0, (0, 1), events=((0, 1, (0, 1)),))  # 2 misses
    engine.fetch(1, (2,), events=((1, 1, (2,)),))  # 1 miss
    engine.send(Used(1, 1, tokens, ((0, ((0, 1),), weights), (1, ((2,),), ((1.0,),))), 0, 3, 2))
    held = (engine.where[1, 2],)  # layer 0: 2 hits; layer 1: 1 hit, 1 miss
    engine.fetch(1, (3,), held=held, events=((0, 1, (0, 1)), (1, 1, (2, 3))))
    engine.send(Used(2, 1, tokens, ((0, ((0, 1),), weights), (1, ((2, 3),), weights)), 3, 1, 2))
    engine.send(Used(3, 1, tokens, ((0, ((1, 0),), weights), (1, ((3, 2),), weights)), 4, 0, 0))  # all hits, told late
    facts = front.await_fact("requests", lambda n: n == 11)
    size = front.source.geometry.banks[0].source_bytes
    assert (facts["hits"], facts["misses"], facts["bytes_read"]) == (7, 4, 4 * size)
    front.send(StatsRequest(5))
    stats = front.await_message(Stats).stats
    assert stats["open_requests"] == 0 and stats["forwards"] == 3


def test_a_wave_that_cannot_be_served_is_refused_at_once(front: ScriptedFront) -> None:
    """A wave beyond the pool, an unknown layer or expert, a ticket that does not rise: answered, never left waiting."""
    engine = ScriptedEngine(front, front.start(3))
    engine.greet()
    for layer, experts in [(0, (0, 1, 2, 3)), (99, (0,)), (0, (EXPERTS,))]:
        failure = engine.fetch(layer, experts)
        assert isinstance(failure, FillFailed)
    engine.send(Need(1, 0, (0,), ()))
    assert "not above" in engine.await_message(FillFailed).reason
    assert engine.fetch(0, (0, 1, 2)) is None


def test_a_lost_reply_is_asked_for_again(front: ScriptedFront) -> None:
    """The engine never got the answer; the same experts under a new ticket are answered without a second read."""
    engine = ScriptedEngine(front, front.start(6))
    engine.greet()
    engine.fetch(0, (0, 1))
    engine.where.clear()  # as if the message had been lost
    assert engine.fetch(0, (0, 1)) is None
    assert front.slot_is(0, 1, engine.where[0, 1])
    front.send(StatsRequest(1))
    stats = front.await_message(Stats).stats
    assert stats["banks"][0]["misses"] == 2 and stats["banks"][0]["in_time"] == 2


def test_an_engine_of_another_model_is_told(front: ScriptedFront) -> None:
    """Without an answer it would wait for its welcome until its limit, and not say why."""
    engine = ScriptedEngine(front, front.start(6))
    front.send(EngineUp(engine.epoch, 1))
    engine.send(Hello("of another model", 1))
    assert "another model" in engine.await_message(NotWelcome).reason
    engine.greet()
    assert engine.fetch(0, (0, 1)) is None


def test_stale_and_malformed_messages_are_counted_and_dropped(front: ScriptedFront) -> None:
    """A dead peer's queue and bytes that are no message change nothing and kill nobody."""
    engine = ScriptedEngine(front, front.start(6))
    engine.greet()
    engine.send(Need(1, 0, (0, 1), ()), epochs=(front.epoch + 3, 1))
    engine.send(Need(1, 0, (0, 1), ()), epochs=(front.epoch, 0))
    engine.socket.send_multipart([b"?", b"?"])
    engine.socket.send(b"one frame")
    engine.send(Released(0, (0, 1, 2, -7, 1 << 40)))
    engine.send(Released(3, (0,)))
    front.send_raw(b"\xc1")
    assert engine.fetch(0, (0, 1)) is None
    front.send(StatsRequest(1))
    heard = next(m for m in front.messages() if isinstance(m, Stats | Failed))
    assert isinstance(heard, Stats), "to the front a Failed is a loader's last word"
    stats = heard.stats
    assert stats["stale_messages"] >= 1 and stats["bad_messages"] == 3
    assert stats["banks"][0]["unasked_releases"] == 5 and stats["banks"][0]["misses"] == 2


def test_the_engine_is_welcomed_with_what_is_resident_after_its_predecessor_died(front: ScriptedFront) -> None:
    """A new engine starts warm: what the dead one was told of is free to be given up, and is told again."""
    address = front.start(4)
    first = ScriptedEngine(front, address)
    first.greet()
    first.fetch(0, (0, 1, 2, 3))
    first.need(1, (0, 1))  # its recalls are never answered: it dies
    first.die()
    second = ScriptedEngine(front, address, epoch=2)
    welcome = second.greet()
    assert 2 <= len(welcome.resident) <= 4
    for r in welcome.resident:
        assert front.slot_is(r.layer, r.expert, r.slot)
    assert second.fetch(2, (4, 5)) is None
    random_waves(front, second, 5, seed=3)


def test_a_new_loader_writes_nothing_that_the_live_engine_may_read(front: ScriptedFront) -> None:
    """The loader is killed; the engine's slots stay as they were until it has said that it dropped its map."""
    engine = ScriptedEngine(front, front.start(4))
    engine.greet()
    engine.fetch(0, (0, 1, 2, 3))
    before = dict(engine.where)
    front.kill()
    front.spawn()
    front.await_message(Geometry)
    front.give_pool()
    front.await_fact("resident", lambda n: n == 0)
    for (layer, expert), slot in before.items():
        assert front.slot_is(layer, expert, slot)
    successor = ScriptedEngine(front, f"ipc://{front.directory}/loader-{front.epoch}.sock")
    assert successor.greet() == Welcome((), 1)
    assert successor.fetch(1, (0, 1)) is None and front.slot_is(1, 1, successor.where[1, 1])


def give_back(engine: ScriptedEngine) -> None:
    """Answer recalls until no more come."""
    while True:
        engine.answer_recalls()
        if engine.socket.poll(200):
            engine.receive()
        elif not engine.recalled:
            break


def test_pins_stay_and_a_smaller_pool_moves_out_of_its_tail(front: ScriptedFront) -> None:
    """Pinned experts are loaded and survive pressure; a live resize ends with nothing in the rows given back."""
    engine = ScriptedEngine(front, front.start(12))
    engine.greet()
    front.send(Pin(3, ((0, 0), (2, 7), (99, 1))))
    assert front.await_message(Pinned).pinned == 2
    while not {(0, 0), (2, 7)} <= engine.where.keys():
        engine.receive()
        engine.answer_recalls()
    random_waves(front, engine, 20, seed=1)
    assert {(0, 0), (2, 7)} <= engine.where.keys()
    front.send(Resize(4, (5,)))
    give_back(engine)
    assert front.await_message(Resized).slots == (5,)
    assert all(slot < 5 for slot in engine.where.values())
    random_waves(front, engine, 10, seed=2)
    assert all(slot < 5 for slot in engine.where.values())
    front.send(Resize(5, (500,)))
    assert "slots" in front.await_message(Failed).text


def test_a_resize_that_another_overtakes_is_not_answered_with_its_size(front: ScriptedFront) -> None:
    engine = ScriptedEngine(front, front.start(12))
    engine.greet()
    random_waves(front, engine, 12, seed=1)  # the tail is in use: the first resize has to wait for recalls
    front.send(Resize(4, (5,)))
    front.send(Resize(5, (9,)))
    give_back(engine)
    failed = front.await_message(Failed)
    assert failed.ref == 4 and "overtook" in failed.text
    assert front.await_message(Resized) == Resized(5, (9,))


def test_pins_from_a_file_are_loaded_before_anyone_asks(front: ScriptedFront, tmp_path: Path) -> None:
    """What calibration wrote is held from the start; a file for another checkpoint pins nothing."""
    file = tmp_path / "pins.json"
    file.write_text(json.dumps({"fingerprint": front.source.geometry.fingerprint, "experts": [[1, 2], [2, 5]]}))
    front.settings["pins"] = str(file)
    engine = ScriptedEngine(front, front.start(12))
    engine.greet()
    while not {(1, 2), (2, 5)} <= engine.where.keys():
        engine.receive()
    assert front.slot_is(1, 2, engine.where[1, 2]) and front.slot_is(2, 5, engine.where[2, 5])
    file.write_text(json.dumps({"fingerprint": "of another", "experts": [[1, 2]]}))
    front.kill()
    front.start(12)
    assert front.await_fact("pinned", lambda n: True)["pinned"] == 0
    assert "another checkpoint" in front.errors.read_text()


def test_everything_at_once_ends_with_the_right_bytes(front: ScriptedFront) -> None:
    """Waves, prefetches, pins and resizes together; every slot that is read holds what it should."""
    front.settings |= {"prefetch": True, "reserve": 2}
    engine = ScriptedEngine(front, front.start(12))
    engine.greet()
    rng = random.Random(8)
    for ref in range(12):
        front.send(Resize(ref, (rng.choice([4, 6, 9, 12]),)))
        front.send(Pin(100 + ref, tuple((rng.randrange(LAYERS), rng.randrange(EXPERTS)) for _ in range(3))))
        engine.send(Hint(ref, tuple((y, ((rng.randrange(EXPERTS), 0.9),)) for y in range(LAYERS))))
        random_waves(front, engine, 3, seed=ref)
    facts = front.await_fact("filling", lambda n: n == 0)
    assert facts["resident"] + facts["recalled"] + facts["free"] <= 12
    assert front.process is not None and front.process.poll() is None


def test_another_region_takes_the_place_of_the_first(front: ScriptedFront) -> None:
    """A resize on macOS: a new pool of another generation, into which nothing is taken over but the engine's trust."""
    engine = ScriptedEngine(front, front.start(6))
    engine.greet()
    engine.fetch(0, (0, 1))
    front.replace_pool(slots=10)
    front.await_message(Ready)
    engine.send(Need(99, 0, (2,), ()))  # the engine has not dropped its map: nothing is written
    engine.socket.poll(300)
    assert engine.greet() == Welcome((), 2)
    engine.ticket = 100
    random_waves(front, engine, 10, seed=4)


def test_a_forward_that_began_with_another_loader_upsets_no_books(front: ScriptedFront) -> None:
    """Its layers were told to the dead one; its report comes here, and the loader goes on."""
    engine = ScriptedEngine(front, front.start(12))
    engine.greet()
    engine.send(Used(4, 1, (0,), ((0, ((0, 1),), ((0.5, 0.5),)),), 1, 1, 1))
    random_waves(front, engine, 2, seed=3)
    facts = front.await_fact("requests", lambda n: n == 2 + 2 * LAYERS * TOP_K)
    assert facts["hits"] + facts["misses"] == facts["requests"]
    front.await_message(Beat)
    assert front.process is not None and front.process.poll() is None
