"""A pack that was interrupted, killed, doubled or ran out of disk: it goes on where it was, or leaves nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtp_loader.errors import BadRequest, DamagedCheckpoint, DiskFull
from mtp_loader.store import open_source
from mtp_loader.store.packing import pack as packing
from mtp_loader.store.packing.journal import JOURNAL, Journal
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from support.checkpoints import Head, make_checkpoint
from support.expert_bytes import all_bytes


def quiet(line: str) -> None:
    """Takes a pack's lines."""


class Killed(BaseException):
    """Stands for an interrupt at a chosen moment."""


def killing(after: int, how: Callable[[], None]) -> Callable[..., list[int]]:
    """A write_layer that calls `how` when `after` layers are written, half way through the next."""
    real, count = packing.write_layer, [0]

    def write_layer(plan: Any, files: Any, fd: int, progress: Any) -> list[int]:
        if count[0] == after:
            os.pwrite(fd, b"half a record", plan.offset)
            how()
        count[0] += 1
        return real(plan, files, fd, progress)

    return write_layer


def interrupt() -> None:
    raise Killed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64", head=Head())


def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers that are written from now on."""
    layers: list[int] = []
    real = packing.write_layer

    def write_layer(plan: Any, files: Any, fd: int, progress: Any) -> list[int]:
        layers.append(plan.layer.layer)
        return real(plan, files, fd, progress)

    monkeypatch.setattr(packing, "write_layer", write_layer)
    return layers


def stop_after(count: int, source: Path, target: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "write_layer", killing(count, interrupt))
        with pytest.raises(Killed):
            pack(source, target, PackSettings(), quiet)


def test_an_interrupted_pack_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "packed"
    stop_after(3, source, target)
    assert not target.exists()
    with open(tmp_path / "packed.partial" / JOURNAL, "a") as journal:
        journal.write('{"part": "layer 3", "crc')  # a line that was being written
    layers = written(monkeypatch)
    pack(source, target, PackSettings(), quiet)
    assert layers == [3, 4]
    assert not (tmp_path / "packed.partial").exists()
    assert not (target / JOURNAL).exists()
    assert all_bytes(open_source(target, widen=False)) == all_bytes(open_source(source, widen=False))


def test_a_part_that_the_disk_lost_is_written_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the journal may know of bytes that never arrived."""
    target = tmp_path / "packed"
    stop_after(3, source, target)
    experts = tmp_path / "packed.partial" / "experts-00001.bin"
    raw = bytearray(experts.read_bytes())
    raw[100] ^= 1
    experts.write_bytes(raw)
    (tmp_path / "packed.partial" / "model-dense-00001.safetensors").write_bytes(b"lost")
    layers = written(monkeypatch)
    pack(source, target, PackSettings(), quiet)
    assert layers == [0, 3, 4]
    assert all_bytes(open_source(target, widen=False)) == all_bytes(open_source(source, widen=False))
    same_dense_but_head(target, source)


def same_dense_but_head(packed: Path, source: Path) -> None:
    weights = mx.load(str(packed / "model-dense-00001.safetensors"))
    plain = mx.load(str(source / "model.safetensors"))
    assert isinstance(weights, dict) and isinstance(plain, dict)
    assert weights and all(mx.array_equal(v, plain[n]) for n, v in weights.items())


def test_another_source_or_other_settings_begin_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of two models must never meet in one store."""
    target = tmp_path / "packed"
    stop_after(3, source, target)
    other = make_checkpoint(tmp_path / "other", "qwen3_next", quant="q4g64", head=Head(), seed=1)
    layers = written(monkeypatch)
    pack(other, target, PackSettings(), quiet)
    assert layers == [0, 1, 2, 3, 4]
    assert all_bytes(open_source(target, widen=False)) == all_bytes(open_source(other, widen=False))


_KILLED = """
import os, signal, sys
from pathlib import Path
from mtp_loader.store.packing import layer as layer_module
from mtp_loader.store.packing import pack as packing
from mtp_loader.store.packing.settings import PackSettings
real, count = packing.write_layer, [0]
def write_layer(plan, files, fd, progress):
    if count[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    count[0] += 1
    return real(plan, files, fd, progress)
packing.write_layer = write_layer
packing.pack(Path(sys.argv[1]), Path(sys.argv[2]), PackSettings(), print)
"""


def test_a_killed_process_leaves_no_store_and_no_lock(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(source), str(target)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    with pytest.raises(DamagedCheckpoint):
        open_source(tmp_path / "packed.partial", widen=False)
    pack(source, target, PackSettings(), quiet)
    assert all_bytes(open_source(target, widen=False)) == all_bytes(open_source(source, widen=False))


def test_two_packs_to_one_place(source: Path, tmp_path: Path) -> None:
    with Journal(tmp_path / "packed.partial", "another"), pytest.raises(BadRequest, match="another process"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)


def test_a_disk_that_would_fill_is_refused_before_the_start(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFull, match=r"needs 1\d\.\d MB, but only 1\.0 MB are free"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_a_disk_that_fills_meanwhile_keeps_what_is_packed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pwrite, [300_000]

    def pwrite(fd: int, data: Any, offset: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(DiskFull, match="run the same command again"):
            pack(source, tmp_path / "packed", PackSettings(), quiet)
    assert not (tmp_path / "packed").exists()
    pack(source, tmp_path / "packed", PackSettings(), quiet)
    assert all_bytes(open_source(tmp_path / "packed", widen=False)) == all_bytes(open_source(source, widen=False))


def test_a_source_cut_while_it_is_packed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never zeros for what could not be read."""
    monkeypatch.setattr(packing, "write_layer", killing(1, lambda: os.truncate(source / "model.safetensors", 40_000)))
    with pytest.raises(DamagedCheckpoint, match="ends"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)
    assert not (tmp_path / "packed").exists()
