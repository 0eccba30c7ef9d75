"""The engine process's start, its end, and the deaths around it. One process a test: each starts in seconds."""

import ast
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtp_daemon.engine.decode.decoder import Decoder
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.process.settings import read_settings
from mtp_daemon.engine.stream import ResidentStream
from mtp_daemon.engine.trunk import Trunk
from mtp_protocol import engine_messages as e
from mtp_protocol.lifeline import send_region
from mtp_protocol.sampling import Sampling
from support.checkpoints import Head, make_checkpoint, make_model
from support.engine_process import engine_process
from support.inline_loader import InlineLoader

PROMPT = [5, 9, 2, 7, 7, 1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("m") / "tiny", "qwen3_next", quant="q4g64", head=Head())


def test_ready_says_what_the_front_must_know(model: Path) -> None:
    """And SIGTERM while idle: it leaves with 0, having said Bye to the loader."""
    with engine_process(model) as engine:
        facts = engine.ready().facts
        assert facts["model_type"] == "qwen3_next"
        assert facts["mtp"] is True
        assert facts["backend"] in ("cpu", "metal")
        for size in ("dense_bytes", "kv_bytes_per_token", "state_bytes", "context"):
            assert facts[size] > 0
        engine.process.terminate()
        assert engine.exit_code() == 0
        assert "Traceback" not in engine.log.read_text()


def test_stop_while_it_waits_for_an_expert(model: Path) -> None:
    """The wait ends, the request gets its terminal message, and the process leaves by itself within the deadline."""
    with engine_process(model, share=0.3) as engine:
        engine.ready()
        request = engine.start(PROMPT, 4000)
        engine.read(e.Tokens)
        engine.loader.drop_fills = 10_000
        engine.read(e.Beat, where=lambda b: b.busy)
        engine.send(e.Stop(10.0))
        assert isinstance(engine.answer(request)[1], e.Failed)
        assert engine.exit_code(10.0) == 0


def test_a_dead_front_takes_the_engine_along_even_while_it_waits(model: Path) -> None:
    """The lifeline ends, the MLX thread waits for an expert that never comes, and the process is gone."""
    with engine_process(model, share=0.3) as engine:
        engine.ready()
        engine.loader.drop_fills = 10_000
        engine.start(PROMPT, 50)
        engine.read(e.Beat, where=lambda b: b.busy)
        engine.lifeline.close()
        assert engine.exit_code(5.0) == 0


def test_a_loader_that_dies_in_the_middle_of_an_answer_changes_no_token(model: Path) -> None:
    """The engine waits for the next loader, joins it with an empty map, and goes on."""
    with engine_process(model, share=0.3) as engine:
        engine.ready()
        whole = engine.ask(PROMPT, 40)[0]
        engine.loader.delay_s = 0.02
        request = engine.start(PROMPT, 40)
        before = engine.read(e.Tokens)
        resident = engine.loader.resident()
        engine.loader.kill()
        engine.send(e.LoaderDead(1))
        engine.loader = InlineLoader(
            engine.loader.source, engine.layout, engine.region_fd, engine.directory, engine.context, epoch=2
        )
        engine.send(e.LoaderUp(2, engine.loader.address))
        tokens, finished = engine.answer(request)
        assert resident
        assert isinstance(finished, e.Finished)
        assert [*before.ids, *(i for m in tokens for i in m.ids)] == whole
        assert engine.loader.reads, "the second loader was asked"
        assert not engine.loader.errors


def test_a_new_region_wants_a_fresh_engine(model: Path) -> None:
    """macOS resize: between requests the engine leaves with a code of its own, and the front starts the next."""
    with engine_process(model) as engine:
        engine.ready()
        engine.layout = type(engine.layout)(engine.layout.generation + 1, engine.layout.nbytes, engine.layout.banks)
        send_region(engine.lifeline, engine.layout.generation, engine.layout.nbytes, engine.region_fd)
        engine.send(e.Pool(engine.geometry, engine.layout))
        assert engine.exit_code() == 75


def test_a_dead_front_takes_the_engine_along_while_it_imports(tmp_path: Path) -> None:
    """Imports take seconds on a busy machine, for ever on a drive that hangs; the lifeline is watched before."""
    (tmp_path / "mlx_lm.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "mtp_daemon.engine", "--lifeline", str(theirs.fileno())]
    command += ["--front", f"ipc://{tmp_path}/f.sock", "--epoch", "1", "--socket-dir", str(tmp_path)]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [*command, "--model", str(tmp_path)],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as engine:
        theirs.close()
        assert engine.stdout is not None and engine.stdout.readline() == b"importing\n"
        ours.close()
        try:
            assert engine.wait(5.0) == 0
        finally:
            engine.kill()


@pytest.mark.parametrize("damage", ["other sizes", "settings"])
def test_what_cannot_start_says_why_and_leaves(model: Path, tmp_path: Path, damage: str) -> None:
    """One Failed without a request, in words for the user; no restart can help."""
    directory = tmp_path / "m"
    settings: dict[str, Any] = {}
    make_checkpoint(directory, "qwen3_next", quant="q4g64")
    if damage == "other sizes":
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, "vocab_size": 600}))
    else:
        settings = {"chunk": 0}
    with engine_process(directory, settings=settings) as engine:
        if damage != "settings":  # those are read before anything else, and the engine is gone at once
            engine.read(e.Beat)
            engine.give_pool()
        while not isinstance(failed := engine.next(), e.Failed):
            assert isinstance(failed, e.Beat)
        assert failed.request is None
        assert failed.kind in ("unsupported", "bad_request")
        assert {"other sizes": "512", "settings": "chunk"}[damage] in failed.text
        assert engine.exit_code() == 2


def test_without_a_head_it_decodes_plainly_and_says_so(tmp_path: Path) -> None:
    with engine_process(make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64")) as engine:
        facts = engine.ready().facts
        assert facts["mtp"] is False
        assert facts["mtp_why"]
        _, _, finished = engine.ask(PROMPT, 5)
        assert finished.stats["speculation"].startswith("off: ")
        assert finished.stats["drafted"] == 0


def test_hidden_auto_measures_once_and_remembers(model: Path) -> None:
    """The second start reads what the first one measured, if the model is still the same."""
    with engine_process(model, settings={"hidden": "auto"}) as engine:
        first = engine.ready().facts
        assert first["hidden_why"].startswith("measured: ")
    with engine_process(model, settings={"hidden": "auto"}) as engine:
        second = engine.ready().facts
    assert second["hidden_why"].startswith("measured earlier")
    assert second["hidden"] == first["hidden"]
    (model / "hidden.json").unlink()


def test_a_model_loaded_in_one_thread_decodes_in_another() -> None:
    """Nothing lazy may be left that belongs to the loading thread's stream."""
    made: list[Target] = []

    def load() -> None:
        loaded, _ = make_model("qwen3_next")
        mx.eval(loaded.parameters())
        made.append(Target(Trunk(loaded), ResidentStream()))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join(60)
    decoder = Decoder(made[0], DecodeSettings(), PROMPT, Sampling())
    assert decoder.prefill(lambda done, total: None, lambda: False)
    assert len(decoder.round(1).ids) == 1
    decoder.close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("[]", "object"),
        ("{", "JSON"),
        ('{"depht": 3}', "depht"),
        ('{"depth": 99}', "depth"),
        ('{"tau": 2.0}', "tau"),
        ('{"context": 0}', "context"),
        ('{"context": "big"}', "context"),
        ('{"hidden": "middle"}', "middle"),
        ('{"verify_mode": "never"}', "never"),
        ('{"speculation": "magic"}', "magic"),
        ('{"depth_controller": "magic"}', "magic"),
    ],
)
def test_a_bad_setting_is_named(settings: str, named: str) -> None:
    with pytest.raises(RequestRefused, match=named) as refusal:
        read_settings(settings)
    assert refusal.value.kind == "bad_request"


def test_the_fronts_settings_are_understood() -> None:
    """Every setting that the front passes to an engine, at its default, is one that the engine knows."""
    from mtp_daemon.config import load_settings

    passed = load_settings(None, {}).for_child("engine")
    assert read_settings(json.dumps(passed)).context == passed["context"]


@pytest.mark.parametrize("package", ["mtp_daemon", "mtp_loader"])
def test_nothing_forks(package: str) -> None:
    """A fork after MLX or a ZeroMQ context exists hangs; children are spawned."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    for root in spec.submodule_search_locations:
        for file in Path(root).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                name = node.attr if isinstance(node, ast.Attribute) else ""
                assert name not in ("fork", "forkpty", "posix_spawn"), f"{file} forks"
                modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                assert "multiprocessing" not in modules, f"{file} imports multiprocessing"


def test_on_a_slow_disk_drafting_that_does_not_pay_is_turned_off(model: Path) -> None:
    """Real misses, a real delay a read, and a random head, which is right about never.

    The second answer begins with what the first one learnt: it reads what plain decoding reads, within a tenth.
    """
    with engine_process(model, share=0.4, settings={"depth_controller": "cost", "depth": 2}) as engine:
        engine.ready()
        engine.loader.delay_s = 0.002
        engine.ask(PROMPT, 48)
        _, _, plain = engine.ask(PROMPT, 48, speculation="off")
        _, _, settled = engine.ask(PROMPT, 48)
        assert settled.stats["bytes_read"] <= 1.1 * plain.stats["bytes_read"]
        rounds_at_0 = sum(rounds for depth, rounds in settled.stats["depth_over_time"] if depth == 0)
        assert rounds_at_0 >= 0.85 * settled.stats["rounds"]
