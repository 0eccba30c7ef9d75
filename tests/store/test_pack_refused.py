"""What is not packed, by name and before anything is written; and the small files that come along."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtp_loader.errors import BadRequest, DamagedCheckpoint, NotStreamable
from mtp_loader.store.index import read_index
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings, quantisation_of
from support.checkpoints import Head, make_checkpoint
from support.rewrite import drop, edit_config, edit_tensors


def quiet(line: str) -> None:
    """Takes a pack's lines."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64", head=Head())


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
