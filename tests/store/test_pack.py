"""A packed store holds the same bytes as its source, dense weights as mlx-lm makes them, whole or not at all."""

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

from mtp_loader.store import open_source
from mtp_loader.store.index import PAGE
from mtp_loader.store.packing import layer as layer_module
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings, quantisation_of
from support.checkpoints import Head, make_checkpoint
from support.expert_bytes import all_bytes, every_expert, expert_bytes, expert_planes
from support.families import EXPERTS, FAMILIES

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
