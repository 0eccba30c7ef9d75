"""A pin proves itself on routing it was not chosen on, or stays off."""

import json
import random
from pathlib import Path

import pytest

from mtp_loader.cli import main
from mtp_loader.policy.interface import Event, key_of
from mtp_loader.predict.pins import hottest, prove
from mtp_loader.replay.recording import Recorder
from mtp_loader.replay.table import maker
from mtp_loader.replay.trace import DECODE, Forward, LayerFacts, Trace
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


def test_pins_that_lru_would_lose_pay() -> None:
    """An expert that comes back just after LRU has given it up: holding it is worth its slot, and the proof says so."""
    trace = Trace("t", "", FACTS, forwards(90, 1, hot=5, noise=True))
    proof = prove(trace, forwards(90, 2, hot=5, noise=True), maker("lru"), {0: 8})
    assert proof.pays
    assert {key_of(y, 5) for y in range(LAYERS)} <= set(proof.pins)
    assert proof.hit_rate_with > proof.hit_rate_without


def test_pins_of_another_topic_are_refused() -> None:
    """What was hot in the calibration text is never asked for in the other: held slots only cost."""
    trace = Trace("t", "", FACTS, forwards(90, 1, hot=5, noise=True))
    other = forwards(90, 2, hot=21, noise=False)
    proof = prove(trace, other, maker("lru"), {0: 12})
    assert not proof.pays
    assert proof.gain <= 0.001


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
        recorder.used(Used(forward.step, 1, (1,), rows, 0, 0))
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
