"""A pin proves itself on routing it was not chosen on, or stays off."""

import json
import random
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from mtp_loader.cli import main
from mtp_loader.errors import BadRequest
from mtp_loader.policy.interface import Event, key_of
from mtp_loader.predict.pins import SHARES, PinProof, Proving, hottest, split, texts
from mtp_loader.replay.recording import Recorder, entry_of
from mtp_loader.replay.table import maker
from mtp_loader.replay.trace import DECODE, PROMPT, Forward, LayerFacts, Trace
from mtp_protocol.expert_messages import Used
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation

LAYERS, EXPERTS = 3, 24
FACTS = {y: LayerFacts(y, 0, EXPERTS, 2, 10) for y in range(LAYERS)}


def forwards(count: int, seed: int, hot: int, noise: bool) -> list[Forward]:
    """Every forward asks for expert `hot` (every third time only, where there is noise between) and for others."""
    rng = random.Random(seed)
    made = []
    for step in range(count):
        events = []
        for layer in range(LAYERS):
            chosen = {hot} if step % 3 == 0 else set()
            while len(chosen) < 2:
                chosen.add(rng.randrange(EXPERTS) if noise else 20 + rng.randrange(4))
            events.append(Event(layer, tuple(sorted(key_of(layer, e) for e in chosen))))
        made.append(Forward(step, DECODE, (), tuple(events)))
    return made


def prove(learned: list[Forward], held_out: list[Forward], slots: int) -> PinProof:
    return Proving(Trace("t", "", FACTS, learned), maker("lru"), {0: slots}).prove(learned, held_out, SHARES)


def test_pins_that_lru_would_lose_pay() -> None:
    """An expert that comes back just after LRU has given it up: holding it is worth its slot, and the proof says so."""
    proof = prove(forwards(90, 1, hot=5, noise=True), forwards(90, 2, hot=5, noise=True), 8)
    assert proof.pays
    assert {key_of(y, 5) for y in range(LAYERS)} <= set(proof.pins)
    assert proof.hit_rate_with > proof.hit_rate_without


def test_pins_of_another_topic_are_refused() -> None:
    """What was hot in the calibration text is never asked for in the other: held slots only cost."""
    proof = prove(forwards(90, 1, hot=5, noise=True), forwards(90, 2, hot=21, noise=False), 12)
    assert not proof.pays
    assert proof.gain <= 0.001


def test_a_gain_within_luck_is_no_proof() -> None:
    """What pins win in one block of the text and lose in another says nothing, however many requests there are."""
    learned, other = forwards(90, 1, hot=5, noise=True), forwards(10, 2, hot=21, noise=False)
    proof = prove(learned, forwards(40, 3, hot=5, noise=True) + other, 8)
    assert 0.0 < sqrt(0.25 / proof.requests) < proof.gain < proof.luck  # counted singly it would be a gain
    assert not proof.pays


def test_pins_get_no_head_start() -> None:
    """Held experts lie in the pool from the first request: a pool that is empty without them would prove anything."""
    same = forwards(64, 4, hot=21, noise=False)  # 12 experts in all: a pool of 12 needs no pins
    proof = Proving(Trace("t", "", FACTS, same), maker("lru"), {0: 12}).prove(same, same, (0.5,))
    assert (proof.hit_rate_with, proof.hit_rate_without) == (1.0, 1.0)
    assert not proof.pays


def test_texts_are_not_cut_where_there_are_enough() -> None:
    """Half a text to learn on and half to prove on would prove pins on the topic they were chosen on."""
    made = []
    for text in range(5):
        made += [Forward(0, PROMPT, (), ()), *(replace(f, step=text) for f in forwards(10, text, 5, noise=True))]
    assert [len(text) for text in texts(made)] == [11] * 5
    learned, held_out = split(made)
    assert (len(learned), len(held_out)) == (33, 22)
    learned, held_out = split(made[1:50:3] * 3)  # hardly a boundary: forwards are cut
    assert learned and held_out
    with pytest.raises(BadRequest, match="more text"):
        split(made[:40])


def test_the_hottest_are_counted_by_hand() -> None:
    trace = Trace("t", "", FACTS, forwards(30, 1, hot=5, noise=False))
    hot = {key_of(y, e) for y in range(LAYERS) for e in range(20, 24)}
    assert set(hottest(trace, trace.forwards, {0: 30}, 0.1)) <= hot


def recording(path: Path, seed: int, hot: int, noise: bool = True) -> Path:
    plane = Plane("gate.weight", "float32", "float32", (4,))
    bank = Bank(0, (plane,), *(Quantisation(),) * 3, tuple(range(LAYERS)))
    geometry = Geometry("f" * 16, "t", True, 1, (bank,), tuple(Layer(y, 0, EXPERTS, 2) for y in range(LAYERS)))
    recorder = Recorder(path, geometry, "m")
    for forward in forwards(90, seed, hot, noise):
        rows = tuple((e.layer, (tuple(k & 0xFFFF for k in e.keys),), ((0.5, 0.5),)) for e in forward.events)
        recorder.used(entry_of(Used(forward.step, 1, (1,), rows, 0, 0)))
    recorder.close()
    return path


def test_the_command_writes_pins_that_pay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen, proved = recording(tmp_path / "a", 1, 5), recording(tmp_path / "b", 2, 5)
    pins = tmp_path / "pins.json"
    options = ["--held-out", str(proved), "--share", "11.2", "--policy", "lru", "--write", str(pins)]
    assert main(["calibrate", str(chosen), *options]) == 0
    assert "pay" in capsys.readouterr().out
    written = json.loads(pins.read_text())
    assert written["fingerprint"] == "f" * 16
    assert [0, 5] in written["experts"]


def test_the_command_writes_nothing_that_does_not_pay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = tmp_path / "pins.json"
    options = [
        "--held-out",
        str(recording(tmp_path / "b", 2, 21, noise=False)),
        "--share",
        "15",
        "--policy",
        "lru",
        "--json",
    ]
    assert main(["calibrate", str(recording(tmp_path / "a", 1, 5)), *options, "--write", str(pins)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert not facts["written"] and not facts["pays"]
    assert not pins.exists()
