"""A calibration from end to end: proved on routing that really happened, held, remembered, and stopped by who asked."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import zmq

from mtp_client.errors import ClientError
from mtp_loader.service.calibration import Calibration
from mtp_protocol.client_messages import Calibrate as ClientCalibrate
from mtp_protocol.expert_messages import Used
from mtp_protocol.loader_messages import Calibrate, Calibrated, CalibrateStop, Failed, Pin, Pinned, Stop
from support.checkpoints import make_checkpoint
from support.front_process import FrontProcess
from support.loader_process import ScriptedEngine, ScriptedFront, scripted_front
from support.waiting import until

LAYERS, EXPERTS, SLOTS = 3, 8, 9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "m", "qwen3_moe", quant="q4g64")


def route(engine: ScriptedEngine, forwards: int) -> None:
    """Tells of forwards that asked for the same few experts half the time, and else for any: LRU loses them."""
    rng = random.Random(3)
    for step in range(forwards):
        rows = []
        for layer in range(LAYERS):
            hot = layer if rng.random() < 0.5 else rng.randrange(EXPERTS)
            other = rng.choice([e for e in range(EXPERTS) if e != hot])
            rows.append((layer, ((hot, other),), ((0.5, 0.5),)))
        phase = 0 if step % 20 == 0 else 1
        engine.send(Used(step, phase, (1,), tuple(rows), 0, 2 * LAYERS))
    engine.fetch(0, (0,))  # answered: the loader has heard it all


def ready(front: ScriptedFront) -> ScriptedEngine:
    engine = ScriptedEngine(front, front.start(SLOTS))
    engine.greet()
    return engine


def children(front: ScriptedFront) -> list[psutil.Process]:
    assert front.process is not None
    return psutil.Process(front.process.pid).children()


def test_pins_that_pay_are_held_and_remembered(tmp_path: Path, model: Path) -> None:
    """Proved, pinned, there again at the next start, and gone for good when nobody wants them."""
    state = tmp_path / "state"
    settings = {"policy": "lru", "reserve": 0, "state_dir": str(state)}
    with scripted_front(tmp_path, model, **settings) as front:
        engine = ready(front)
        front.send(Calibrate(1, None, ()))
        assert "more text" in front.await_message(Failed).text
        route(engine, 300)
        front.send(Calibrate(2, None, ()))
        result = front.await_message(Calibrated).result
        assert result["pays"] and result["gain"] > result["luck"] > 0
        assert result["pinned"] == result["pins"] > 0
        assert (result["learned"]["texts"], result["held_out"]["texts"]) == (10, 5)
        assert children(front) == []
        front.send(Stop(5.0))
        assert front.process is not None and front.process.wait(30) == 0
        front.lifeline.close()
        ready(front)
        front.await_fact("pinned", lambda n: n == result["pinned"])
        front.send(Pin(3, ()))
        assert front.await_message(Pinned).pinned == 0
        assert [p.name for p in state.iterdir()] == []


def test_pins_that_do_not_pay_take_the_old_ones_away(tmp_path: Path, model: Path) -> None:
    """A pool of every expert: nothing can be won, and what was held before was not proved either."""
    with scripted_front(tmp_path, model, policy="lru", reserve=0) as front:
        engine = ScriptedEngine(front, front.start(LAYERS * EXPERTS))
        engine.greet()
        front.send(Pin(1, ((0, 3),)))
        assert front.await_message(Pinned).pinned == 1
        route(engine, 60)
        front.send(Calibrate(2, None, (0.25,)))
        result = front.await_message(Calibrated).result
        assert not result["pays"] and result["pinned"] == 0
        front.send(Calibrate(3, None, (0.9,)))
        assert "at most 0.50" in front.await_message(Failed).text


def test_a_stopped_calibration_leaves_no_process_and_changes_nothing(tmp_path: Path, model: Path) -> None:
    """Ctrl-C: whatever the proving process does, it is gone."""
    with scripted_front(tmp_path, model, policy="forecast", reserve=0) as front:
        engine = ready(front)
        route(engine, 300)
        front.send(Calibrate(1, None, ()))
        (proving,) = until("it proves", lambda: children(front))
        proving.suspend()  # it will not end by itself
        front.send(Calibrate(2, None, ()))
        assert "already" in front.await_message(Failed, lambda m: m.ref == 2).text
        front.send(CalibrateStop(1))
        until("it is reaped", lambda: not children(front))


def test_the_proving_process_leaves_when_its_input_ends(tmp_path: Path) -> None:
    """A loader that is killed can end nobody: here is a job that never ends by itself."""
    os.mkfifo(tmp_path / "recording")
    job = {"recording": str(tmp_path / "recording"), "policy": "lru", "slots": {}, "reserve": 0, "shares": []}
    command = [sys.executable, "-m", "mtp_loader.service.proving", json.dumps(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as proving:
        assert proving.stdin is not None
        proving.stdin.close()
        assert proving.wait(30) == 0


def test_a_proof_that_breaks_off_or_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process beside the loader does, the errand ends, once, and says how."""
    ended: list[tuple[int, object, str]] = []
    poller = zmq.Poller()
    noise = Calibration(poller, lambda *end: ended.append(end), (sys.executable, "-c", "print('no JSON')"))
    noise.begin(7, lambda file: None, {})
    until("it ends", lambda: noise.look() or ended)
    assert ended == [(7, None, "the calibration broke off; see the loader's log")]
    sleepy = Calibration(poller, lambda *end: ended.append(end), (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr("mtp_loader.service.calibration.LIMIT_S", 0.0)
    sleepy.begin(8, lambda file: None, {})
    sleepy.look()
    assert ended[1:] == [(8, None, "the calibration was stopped after 0 s")] and not sleepy.running
    assert poller.sockets == []


def test_the_front_passes_it_on_and_stops_it_for_a_client_that_left() -> None:
    """One at a time; a client's end is told to the loader, and the next one gets its turn."""
    with FrontProcess({"loader": [{"withhold_calibrated": 1}]}).wait_ready() as front:
        seen = front.logs / "loader-1.log"
        with front.client() as waiting:
            waiting._mailbox.open(ClientCalibrate(waiting._mailbox.next_ref(), 3.5, (0.25,)))
            until("passed on", lambda: "Calibrate(" in seen.read_text())
            assert "last_s=3.5, shares=(0.25,)" in seen.read_text()
            with front.client() as other, pytest.raises(ClientError, match="under way already"):
                other.calibrate()
        until("stopped", lambda: "CalibrateStop(" in seen.read_text())
        with front.client() as other, pytest.raises(ClientError, match="shares"):
            other.calibrate(shares=(2.0,))
        with front.client() as other:
            assert other.calibrate() == {"pays": False, "pinned": 0}
