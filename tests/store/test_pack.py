"""A packed store holds the same bytes as its source, dense weights as mlx-lm makes them, whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mtp_loader.errors import BadRequest, DamagedCheckpoint, DiskFull, NotStreamable
from mtp_loader.store import open_source
from mtp_loader.store.index import PAGE, read_index
from mtp_loader.store.packing import layer as layer_module
from mtp_loader.store.packing import pack as packing
from mtp_loader.store.packing.journal import JOURNAL, Journal
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings, quantisation_of
from support.checkpoints import Head, make_checkpoint
from support.expert_bytes import all_bytes, every_expert, expert_bytes, expert_planes
from support.families import EXPERTS, FAMILIES
from support.rewrite import drop, edit_config, edit_tensors

QUANTS = (None, "bf16", "q2g32", "q3g64/bf16", "q4g64", "q5g32", "q6g64", "q8g32", "mixed", "mxfp4", "mxfp8", "nvfp4")


def quiet(line: str) -> None:
    """Takes a pack's lines."""


def cases() -> list[Any]:
    """Every family with three quantisations and its original layouts; the rest of the matrix by request."""
    found: list[Any] = []
    for i, family in enumerate(FAMILIES):
        for j, quant in enumerate(QUANTS):
            always = (j - i) % 4 == 0 or quant is None
            found.append(pytest.param(family, quant, "mlx", marks=[] if always else pytest.mark.full))
        if family == "gpt_oss":
            found.append((family, "mxfp4", "hf"))
        else:
            found.append((family, None, "hf"))
            found.append(pytest.param(family, "bf16", "hf", marks=pytest.mark.full))
    return [*found, ("qwen3_5_moe", "bf16", "fused")]


@pytest.mark.parametrize(("family", "quant", "layout"), cases())
def test_packed_is_the_source_byte_for_byte(tmp_path: Path, family: str, quant: str | None, layout: Any) -> None:
    path = make_checkpoint(tmp_path / "m", family, quant=quant, layout=layout)
    pack(path, tmp_path / "packed", PackSettings(), quiet)
    # The same model in mlx-lm's layout judges: neither gpt_oss nor Qwen3.5 per expert is one mlx-lm or ranges can read.
    judge = path if layout == "mlx" else make_checkpoint(tmp_path / "judge", family, quant=quant)
    packed, plain = open_source(tmp_path / "packed", widen=False), open_source(judge, widen=False)
    assert all_bytes(packed) == all_bytes(plain)
    assert [(b.planes, b.gate, b.down) for b in packed.geometry.banks] == [
        (b.planes, b.gate, b.down) for b in plain.geometry.banks
    ]
    assert packed.geometry.layers == plain.geometry.layers
    for key in every_expert(packed):
        (extent,) = packed.extents(*key)
        assert extent.offset % PAGE == 0
        assert packed.checksum(*key) == zlib.crc32(expert_bytes(packed, *key))
    assert packed.alignment == PAGE
    same_dense(tmp_path / "packed", judge)


def same_dense(packed: Path, source: Path) -> None:
    """The packed dense parameters are those mlx-lm loads from the source, in name, type, shape and bytes."""
    wanted = dict(tree_flatten(load_model(source, lazy=True)[0].parameters()))
    weights = mx.load(str(packed / "model-dense-00001.safetensors"))
    assert isinstance(weights, dict)
    routed = {n for n in wanted if "switch_mlp" in n or ".mlp.experts." in n}
    assert weights.keys() == wanted.keys() - routed
    for name, value in weights.items():
        assert value.dtype == wanted[name].dtype, name
        assert mx.array_equal(value, wanted[name]), name
    model, _ = load_model(packed, lazy=True, strict=False)
    loaded = dict(tree_flatten(model.parameters()))
    for name, value in weights.items():
        assert mx.array_equal(loaded[name], value), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["q4g64", "q3g32", "mxfp4", "nvfp4"])
def test_quantising_on_the_way_is_mlx_lm_s_own_conversion(tmp_path: Path, family: str, quant: str) -> None:
    """Same bytes as from a checkpoint that mlx-lm's rules quantised: experts, dense weights, routers at 8 bits."""
    plain = make_checkpoint(tmp_path / "plain", family)
    converted = make_checkpoint(tmp_path / "converted", family, quant=quant)
    asked = (
        quantisation_of(int(quant[1]), int(quant[3:]), None) if quant[0] == "q" else quantisation_of(None, None, quant)
    )
    pack(plain, tmp_path / "packed", PackSettings(asked, "keep"), quiet)
    assert all_bytes(open_source(tmp_path / "packed", widen=False)) == all_bytes(open_source(converted, widen=False))
    same_dense(tmp_path / "packed", converted)


def test_float32_scales_are_those_of_the_widened_weights(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="bf16", layout="hf", head=Head("inside", "per_expert"))
    pack(path, tmp_path / "packed", PackSettings(quantisation_of(4, 64, None), "float32"), quiet)
    packed, plain = open_source(tmp_path / "packed", widen=False), open_source(path, widen=False)
    for key in ((0, 0), (3, 7), (4, 5)):
        weight = np.frombuffer(expert_planes(plain, *key)["up.weight"], np.uint16 if key[0] < 4 else np.float32)
        wide = mx.array(weight)
        wide = wide.view(mx.bfloat16).astype(mx.float32) if key[0] < 4 else wide
        parts = mx.quantize(wide.reshape(64, 128), group_size=64, bits=4)
        rows = expert_planes(packed, *key)
        for name, part in zip(("weight", "scales", "biases"), parts, strict=True):
            assert rows[f"up.{name}"] == memoryview(part).tobytes()
    dense = mx.load(str(tmp_path / "packed" / "model-dense-00001.safetensors"))
    assert isinstance(dense, dict)
    assert {v.dtype for v in dense.values()} == {mx.float32, mx.uint32}
    plain_dense = mx.load(str(path / "model.safetensors"))
    assert isinstance(plain_dense, dict)
    parts = mx.quantize(plain_dense["lm_head.weight"].astype(mx.float32), group_size=64, bits=4)
    for name, part in zip(("weight", "scales", "biases"), parts, strict=True):
        assert mx.array_equal(dense[f"lm_head.{name}"], part)


def test_widening_the_scales_of_a_quantised_model_changes_no_number(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "gpt_oss", quant="q4g64/bf16")
    pack(path, tmp_path / "packed", PackSettings(scales="float32"), quiet)
    packed, plain = open_source(tmp_path / "packed", widen=False), open_source(path, widen=False)
    for key in every_expert(plain):
        before, after = expert_planes(plain, *key), expert_planes(packed, *key)
        for name in before:
            if name.endswith("weight"):
                assert before[name] == after[name]
            else:
                narrow = np.frombuffer(before[name], np.uint16).astype(np.uint32) << 16
                assert narrow.view(np.float32).tobytes() == after[name]


@pytest.mark.parametrize(("quant", "layout", "asked"), [("q4g64", "mlx", None), ("bf16", "hf", "q4g64")])
def test_a_layer_larger_than_the_buffers_goes_through_them_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str, layout: Any, asked: str | None
) -> None:
    """A run may not be overwritten by the next, which is read before this one is written."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant=quant, layout=layout)
    options = PackSettings(quantisation_of(4, 64, None) if asked else None)
    pack(path, tmp_path / "at_once", options, quiet)
    made, ready = [0], threading.Condition()

    def counting(real: Callable[..., None]) -> Callable[..., None]:
        def make(plan: Any, *rest: Any) -> None:
            real(plan, *rest)
            with ready:
                made[0] += 1
                ready.notify_all()

        return make

    real_write, written_runs = layer_module.write_at, [0]

    def write_at(fd: int, data: memoryview, offset: int) -> None:
        written_runs[0] += 1
        next_run = written_runs[0] if written_runs[0] % EXPERTS == 0 else written_runs[0] + 1
        with ready:
            assert ready.wait_for(lambda: made[0] >= next_run, timeout=10)
        real_write(fd, data, offset)

    monkeypatch.setattr(layer_module, "CHUNK_BYTES", 1)  # one expert a run
    monkeypatch.setattr(layer_module, "copy_records", counting(layer_module.copy_records))
    monkeypatch.setattr(layer_module, "make_records", counting(layer_module.make_records))
    monkeypatch.setattr(layer_module, "write_at", write_at)
    pack(path, tmp_path / "in_runs", options, quiet)
    assert written_runs == [3 * EXPERTS]
    for name in ("experts-00001.bin", "index.json"):
        assert (tmp_path / "in_runs" / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes()


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


def test_what_is_in_the_way_is_never_overwritten(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    target.mkdir()
    (target / "letter.txt").write_text("mine")
    with pytest.raises(BadRequest, match="not empty"):
        pack(source, target, PackSettings(), quiet)
    (target / "letter.txt").unlink()
    pack(source, target, PackSettings(), quiet)
    lines: list[str] = []
    pack(source, target, PackSettings(), lines.append)
    assert "nothing to do" in lines[0]
    with pytest.raises(BadRequest, match="another packed store"):
        pack(source, target, PackSettings(scales="float32"), quiet)
    with pytest.raises(BadRequest, match="packed store already"):
        pack(target, tmp_path / "again", PackSettings(), quiet)


def test_a_source_cut_while_it_is_packed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never zeros for what could not be read."""
    monkeypatch.setattr(packing, "write_layer", killing(1, lambda: os.truncate(source / "model.safetensors", 40_000)))
    with pytest.raises(DamagedCheckpoint, match="ends"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)
    assert not (tmp_path / "packed").exists()


def test_a_parameter_in_no_file_is_named(source: Path, tmp_path: Path) -> None:
    """mlx-lm would run on with random numbers when it loads without strictness, as streaming must."""
    drop(source, "layers.2.linear_attn.out_proj")
    with pytest.raises(DamagedCheckpoint, match=r"layers\.2\.linear_attn\.out_proj"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)


def test_a_layer_whose_experts_are_all_gone(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    drop(path, "layers.1.mlp.switch_mlp")
    with pytest.raises(NotStreamable, match="layer 1 has a SwitchGLU but no experts"):
        pack(path, tmp_path / "packed", PackSettings(), quiet)


def test_a_config_that_asks_to_run_code(source: Path, tmp_path: Path) -> None:
    edit_config(source, model_file="evil.py")
    with pytest.raises(NotStreamable, match=r"evil\.py"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)


@pytest.mark.parametrize("changes", [{"model_type": "no_such"}, {"hidden_size": "x"}, {"num_attention_heads": 0}])
def test_a_config_mlx_lm_cannot_build(source: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    edit_config(source, **changes)
    with pytest.raises(NotStreamable, match="mlx-lm cannot build"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)


def test_quantising_what_is_quantised_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    with pytest.raises(BadRequest, match="already quantised"):
        pack(path, tmp_path / "packed", PackSettings(quantisation_of(4, 64, None)), quiet)
    small = make_checkpoint(tmp_path / "s", "qwen3_moe", changes={"moe_intermediate_size": 32, "hidden_size": 96})
    with pytest.raises(BadRequest, match="smaller --q-group"):
        pack(small, tmp_path / "packed", PackSettings(quantisation_of(4, 128, None)), quiet)


@pytest.mark.parametrize(
    ("bits", "group", "mode"), [(7, None, None), (4, 48, None), (4, 16, "affine"), (8, None, "mxfp4"), (4, 64, "fp4")]
)
def test_settings_that_do_not_exist(bits: int | None, group: int | None, mode: str | None) -> None:
    with pytest.raises(BadRequest):
        quantisation_of(bits, group, mode)


def test_small_files_come_along_but_not_the_code(source: Path, tmp_path: Path) -> None:
    (source / "modeling_evil.py").write_text("import os")
    (source / "generation_config.json").write_text('{"eos_token_id": [256, 1]}')
    (source / "LICENSE").write_text("yours")
    (source / "notes.txt").symlink_to("/etc/passwd")
    with pytest.raises(DamagedCheckpoint, match="leads out"):
        pack(source, tmp_path / "packed", PackSettings(), quiet)
    (source / "notes.txt").unlink()
    pack(source, tmp_path / "packed", PackSettings(), quiet)
    names = {f.name for f in read_index(tmp_path / "packed").files}
    assert names == {p.name for p in (tmp_path / "packed").iterdir()} - {"index.json"}
    assert {"generation_config.json", "LICENSE", "tokenizer.json"} <= names
    assert "modeling_evil.py" not in names


def test_tensors_the_model_has_no_place_for_are_said(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    edit_tensors(path, lambda w: {**w, "model.layers.0.self_attn.rotary_emb.inv_freq": mx.zeros((4,))})
    lines: list[str] = []
    pack(path, tmp_path / "packed", PackSettings(), lines.append)
    assert any("rotary_emb.inv_freq" in line for line in lines)
