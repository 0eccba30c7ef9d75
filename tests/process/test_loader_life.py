"""How the loader process starts and ends, and what it does about a bad disk."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from mtp_protocol.expert_messages import FillFailed
from mtp_protocol.loader_messages import Beat, Failed, Geometry, Stop
from support.checkpoints import make_checkpoint
from support.loader_process import DEADLINE_S, ScriptedEngine, ScriptedFront, scripted_front


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    plain = make_checkpoint(directory / "plain", "qwen3_moe", quant="q4g64")
    pack(plain, directory / "packed", PackSettings(), lambda line: None)
    return directory / "packed"


@pytest.fixture
def packed(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    target = tmp_path / "packed"
    target.mkdir()
    for file in pristine.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def experts_file(packed: Path) -> Path:
    return next(packed.glob("experts-*.bin"))


def opened(front: ScriptedFront, slots: int = 6) -> ScriptedEngine:
    engine = ScriptedEngine(front, front.start(slots))
    engine.greet()
    return engine


def exit_code(front: ScriptedFront) -> int:
    assert front.process is not None
    return front.process.wait(DEADLINE_S)


def test_the_end_of_the_lifeline_ends_the_loader(tmp_path: Path, packed: Path) -> None:
    """The front is gone, however it died; nothing is left behind."""
    with scripted_front(tmp_path, packed) as front:
        front.start(6)
        front.lifeline.close()
        assert exit_code(front) == 0


@pytest.mark.parametrize("how", ["SIGTERM", "Stop"])
def test_a_stop_waits_for_the_demand_under_way(tmp_path: Path, packed: Path, how: str) -> None:
    """SIGTERM and Stop drain: what was asked for is still answered."""
    with scripted_front(tmp_path, packed, delay_ms=2500.0, stop_deadline_s=20.0) as front:
        engine = opened(front)
        engine.need(0, (0, 1))
        front.await_fact("filling", lambda n: n == 2)
        assert front.process is not None
        if how == "Stop":
            front.send(Stop(20.0))
        else:
            front.process.send_signal(signal.SIGTERM)
        while (0, 0) not in engine.where or (0, 1) not in engine.where:
            engine.receive()
        assert exit_code(front) == 0


def test_a_term_signal_before_there_is_a_pool_ends_it(tmp_path: Path, packed: Path) -> None:
    """SIGTERM while things are being set up leaves no orphan."""
    with scripted_front(tmp_path, packed) as front:
        front.spawn()
        front.await_message(Beat)
        assert front.process is not None
        front.process.send_signal(signal.SIGTERM)
        assert exit_code(front) == 0


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"polcy": "lru"}, 2, "polcy"),
        ({"readers": 0}, 2, "readers"),
        ({"policy": "magic"}, 2, "policy"),
        ({"shim": {"shrt": 3}}, 2, "shrt"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, packed: Path, settings: dict[str, Any], code: int, text: str) -> None:
    """The user's mistake: told to the front in one line, exit code 2."""
    with scripted_front(tmp_path, packed, **settings) as front:
        front.spawn()
        failed = front.await_message(Failed)
        assert failed.kind == "bad_request" and text in failed.text
        assert exit_code(front) == code


def test_a_missing_model_is_named(tmp_path: Path, packed: Path) -> None:
    """No such model: refused by name."""
    with scripted_front(tmp_path, packed) as front:
        front.model = tmp_path / "nowhere"
        front.spawn()
        assert "nowhere" in front.await_message(Failed).text
        assert exit_code(front) == 2


def test_an_experts_file_that_is_gone_is_refused_at_start(tmp_path: Path, packed: Path) -> None:
    """Never zeros."""
    with scripted_front(tmp_path, packed) as front:
        gone = experts_file(packed)
        gone.unlink()
        front.spawn()
        assert gone.name in front.await_message(Failed).text
        assert exit_code(front) != 0


def test_a_truncated_file_fails_the_request_and_works_after_repair(tmp_path: Path, packed: Path) -> None:
    """The failure names file and offset, other experts go on, and a repaired file is read without a restart."""
    with scripted_front(tmp_path, packed) as front:
        engine = opened(front)
        file = experts_file(packed)
        whole = file.read_bytes()
        last = front.source.geometry.layers[-1].layer
        os.truncate(file, len(whole) // 2)
        failure = engine.fetch(last, (7,))
        assert isinstance(failure, FillFailed) and (failure.layer, failure.expert) == (last, 7)
        assert file.name in failure.reason and "offset" in failure.reason
        assert engine.fetch(0, (0,)) is None
        file.write_bytes(whole)
        assert engine.fetch(last, (7,)) is None
        assert front.slot_is(last, 7, engine.where[last, 7])


def test_a_truncated_file_may_also_be_repaired_by_another_in_its_place(tmp_path: Path, packed: Path) -> None:
    """The descriptor still shows the damaged file; the path leads to the sound one."""
    with scripted_front(tmp_path, packed) as front:
        engine = opened(front)
        file = experts_file(packed)
        whole = file.read_bytes()
        os.truncate(file, 4096)
        assert engine.fetch(2, (7,)) is not None
        (packed / "new").write_bytes(whole)
        os.replace(packed / "new", file)
        assert engine.fetch(2, (7,)) is None and front.slot_is(2, 7, engine.where[2, 7])


def test_a_replaced_file_is_read_on_through_its_descriptor_with_a_warning(tmp_path: Path, packed: Path) -> None:
    """A shard that os.replace swaps mid-run keeps its old bytes for us."""
    with scripted_front(tmp_path, packed) as front:
        engine = opened(front)
        file = experts_file(packed)
        source = file.read_bytes()
        (packed / "new").write_bytes(bytes(len(source)))
        os.replace(packed / "new", file)
        assert engine.fetch(1, (3,)) is None
        slot = engine.where[1, 3]
        (packed / "old").write_bytes(source)
        os.replace(packed / "old", file)  # for the comparison, which reads the path
        assert front.slot_is(1, 3, slot)
        for _ in range(12):
            front.await_message(Beat)
            if "was replaced" in front.errors.read_text():
                break
        else:
            raise AssertionError("nobody was warned")


def test_a_changed_byte_fails_its_checksum(tmp_path: Path, packed: Path) -> None:
    """Checksums on the first read of each expert: named by layer and expert, the file and the offset."""
    with scripted_front(tmp_path, packed) as front:
        engine = opened(front)
        extent = front.source.extents(1, 4)[0]
        with open(front.source.files[extent.file], "r+b") as file:
            file.seek(extent.offset + 100)
            byte = file.read(1)
            file.seek(extent.offset + 100)
            file.write(bytes([byte[0] ^ 1]))
        failure = engine.fetch(1, (4,))
        assert isinstance(failure, FillFailed) and "checksum" in failure.reason and failure.expert == 4
        assert engine.fetch(1, (5,)) is None


@pytest.mark.parametrize(
    "shim", [{"short": 1000}, {"eio": [3, 4, 9]}, {"refuse_above": (1 << 31) - 1}, {"gbps": 0.5}, {"delay_s": 0.001}]
)
def test_a_bad_disk_is_read_right(tmp_path: Path, packed: Path, shim: dict[str, Any]) -> None:
    """Short reads, passing EIO, a slow disk: retried or waited for, and the bytes are right."""
    with scripted_front(tmp_path, packed, shim=shim) as front:
        engine = opened(front)
        for layer in range(3):
            assert engine.fetch(layer, (1, 6)) is None
            assert front.slot_is(layer, 1, engine.where[layer, 1])
            assert front.slot_is(layer, 6, engine.where[layer, 6])


def test_a_dead_disk_fails_requests_and_not_the_loader(tmp_path: Path, packed: Path) -> None:
    """EIO for good; every demand is answered, and the loader lives."""
    with scripted_front(tmp_path, packed, shim={"eio_from": 3}, readers=1) as front:
        engine = opened(front)
        failures = [engine.fetch(0, (e,)) for e in range(6)]
        assert isinstance(failures[-1], FillFailed) and "rror" in failures[-1].reason
        assert front.await_fact("read_failures", lambda n: n >= 3)["read_failures"] >= 3


def test_a_demand_that_waits_too_long_fails(tmp_path: Path, packed: Path) -> None:
    """Every slot leased; one more asked waits with a deadline, and the loader writes to none of them."""
    with scripted_front(tmp_path, packed, demand_limit_s=0.5) as front:
        engine = opened(front, slots=2)
        engine.fetch(0, (0, 1))
        engine.need(1, (0, 1))  # recalls that this engine never answers
        failure = engine.await_message(FillFailed)
        assert "waited" in failure.reason
        assert front.slot_is(0, 0, engine.where[0, 0]) and front.slot_is(0, 1, engine.where[0, 1])


def test_expert_files_are_not_mapped_and_sockets_are_private(tmp_path: Path, packed: Path) -> None:
    """No mmap of expert files. The experts' socket is the user's alone."""
    with scripted_front(tmp_path, packed) as front:
        engine = opened(front)
        engine.fetch(0, (0, 1))
        assert front.process is not None
        maps = Path(f"/proc/{front.process.pid}/maps")
        if not maps.exists():
            pytest.skip("no /proc here")
        assert not [line for line in maps.read_text().splitlines() if "experts-" in line]
        assert (front.directory / f"loader-{front.epoch}.sock").stat().st_mode & 0o077 == 0


def test_geometry_is_the_first_word(tmp_path: Path, packed: Path) -> None:
    """The front sizes the pool from it, before there is one."""
    with scripted_front(tmp_path, packed) as front:
        front.spawn()
        assert next(front.messages()) == Geometry(front.source.geometry)
