"""The MTP head is found wherever it lies, shifted once, and never half used."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtp_loader.errors import BadRequest, DamagedCheckpoint, LoaderError
from mtp_loader.store import HeadFound, HeadMissing, find_head, open_source
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from support.checkpoints import Head, head_file, make_checkpoint, make_head_weights, make_original_qwen3_next
from support.expert_bytes import expert_bytes
from support.families import EXPERTS, HEAD_FAMILIES
from support.rewrite import drop, edit_tensors, retype

FORMS = ("stacked", "per_expert", "fused")


def quiet(line: str) -> None:
    """Takes a pack's lines."""


def head_bytes(path: Path, head: Path | None = None) -> list[bytes]:
    source = open_source(path, widen=False, head=head)
    layer = source.geometry.layers[-1]
    assert layer.is_head
    return [expert_bytes(source, layer.layer, e) for e in range(EXPERTS)]


def norms(path: Path, head: Path | None = None) -> dict[str, list[float]]:
    """The head's norms as the engine will use them: with 1.0 added where the file's layout asks for it."""
    found = find_head(path, head)
    assert isinstance(found, HeadFound)
    values: dict[str, list[float]] = {}
    for name in found.norm_names:
        weights = mx.load(str(found.tensors[name].file))
        assert isinstance(weights, dict)
        value = weights[found.tensors[name].tensor].astype(mx.float32) + (1.0 if found.shift_norms else 0.0)
        values[name] = np.array(value).tolist()
    return values


@pytest.mark.parametrize("family", HEAD_FAMILIES)
@pytest.mark.parametrize("place", ["inside", "shard", "separate"])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_head_from_every_place_and_form(tmp_path: Path, family: str, place: Any, form: Any) -> None:
    """Experts, dense tensors and norms are equal; none is unused."""
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64", head=Head(place, form))
    aside = head_file(path) if place == "separate" else None
    weights = make_head_weights(family)
    found = find_head(path, aside)
    assert isinstance(found, HeadFound)
    assert set(found.tensors) == {n for n in weights if "switch_mlp" not in n}
    assert found.shift_norms == (form != "stacked")
    assert norms(path, aside) == {n: np.array(weights[n]).tolist() for n in found.norm_names}
    assert len(found.norm_names) == 7
    switch = "layers.0.mlp.switch_mlp"
    for expert, data in enumerate(head_bytes(path, aside)):
        parts = [weights[f"{switch}.{p}_proj.weight"][expert] for p in ("gate", "up", "down")]
        assert data == b"".join(memoryview(p).tobytes() for p in parts)


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp.", "language_model.mtp.", ""])
def test_every_prefix_of_a_head(tmp_path: Path, prefix: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_5_moe", head=Head("shard", "per_expert", prefix))
    found = find_head(path)
    assert isinstance(found, HeadFound)
    assert found.where == "in mtp.safetensors"
    assert "layers.0.self_attn.q_proj.weight" in found.tensors


def test_a_head_in_a_directory_of_its_own(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("separate", prefix=""))
    found = find_head(path, head_file(path).parent)
    assert isinstance(found, HeadFound)
    assert head_bytes(path, head_file(path).parent) == head_bytes(path, head_file(path))


def test_a_config_that_declares_a_head_which_is_not_there(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("separate"))
    found = find_head(path)
    assert isinstance(found, HeadMissing)
    assert "config declares 1 MTP layer" in found.why
    assert "\n" not in found.why
    assert not any(y.is_head for y in open_source(path, widen=False).geometry.layers)


def test_a_head_that_was_never_there(tmp_path: Path) -> None:
    found = find_head(make_checkpoint(tmp_path / "m", "qwen3_moe"))
    assert found == HeadMissing("the checkpoint has no mtp.* tensors")


def test_another_family_s_head_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "glm4_moe")
    edit_tensors(path, lambda w: {**w, "model.layers.3.eh_proj.weight": mx.zeros((4, 8))})
    found = find_head(path)
    assert isinstance(found, HeadMissing)
    assert "glm4_moe head" in found.why


@pytest.mark.parametrize("part", ["mtp.fc.", "pre_fc_norm_hidden", "q_norm", "shared_expert_gate", "switch_mlp"])
def test_a_head_that_lacks_a_tensor_is_refused(tmp_path: Path, part: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("shard"))
    drop(path, part, file="mtp.safetensors")
    with pytest.raises(DamagedCheckpoint):
        open_source(path, widen=False)
    without = open_source(path, widen=False, with_head=False)
    assert not any(y.is_head for y in without.geometry.layers)


@pytest.mark.parametrize("name", ["mtp.fc.weight", "mtp.layers.0.mlp.switch_mlp.up_proj.weight"])
def test_a_head_in_fp8_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("shard"))
    edit_tensors(path, lambda w: {n: v.astype(mx.uint8) if n == name else v for n, v in w.items()}, "mtp.safetensors")
    retype(path / "mtp.safetensors", name, "F8_E4M3")
    with pytest.raises(LoaderError, match=r"FP8 \(F8_E4M3\)"):
        open_source(path, widen=False)


@pytest.mark.parametrize("extra", ["mtp.layers.0.mlp.router_bias", "mtp.embed_tokens.weight", "mtp.layers.1.x.weight"])
def test_a_head_with_a_tensor_that_would_go_unused_is_refused(tmp_path: Path, extra: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("shard"))
    edit_tensors(path, lambda w: {**w, extra: mx.zeros((4,))}, "mtp.safetensors")
    with pytest.raises(DamagedCheckpoint, match=extra.removeprefix("mtp.")):
        find_head(path)


def test_a_head_asked_for_that_is_none(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next")
    with pytest.raises(BadRequest, match="neither"):
        find_head(path, tmp_path / "gone")
    assert isinstance(find_head(path, path), HeadMissing)
    with pytest.raises(BadRequest, match="no MTP tensors"):
        pack(path, tmp_path / "packed", PackSettings(head=path), quiet)


@pytest.mark.parametrize("form", FORMS)
def test_packing_shifts_the_norms_once(tmp_path: Path, form: Any) -> None:
    """Raw and converted heads give one packed head, whose norms are used as they are."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("inside", form))
    pack(path, tmp_path / "packed", PackSettings(), quiet)
    found = find_head(tmp_path / "packed")
    assert isinstance(found, HeadFound)
    assert not found.shift_norms
    assert norms(tmp_path / "packed") == norms(path)
    assert head_bytes(tmp_path / "packed") == head_bytes(path)


def test_trunk_and_head_of_an_original_are_shifted_alike(tmp_path: Path) -> None:
    """The original's norms are zero-centred in bf16; the packed ones are 1 + w for all seven and for the trunk."""
    path = make_original_qwen3_next(tmp_path / "original")
    assert sum(f.stat().st_size for f in path.iterdir()) < 1_000_000
    pack(path, tmp_path / "packed", PackSettings(), quiet)
    before, after = norms(path), norms(tmp_path / "packed")
    assert before == after
    assert all(0.8 < v < 1.2 for values in after.values() for v in values)
    trunk = mx.load(str(tmp_path / "packed" / "model-dense-00001.safetensors"))
    assert isinstance(trunk, dict)
    for name in (
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.3.self_attn.q_norm.weight",
    ):
        assert bool(mx.all(mx.abs(trunk[name].astype(mx.float32) - 1) < 0.2)), name


def test_a_packed_store_takes_a_head_from_elsewhere(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64", head=Head("separate", "per_expert"))
    pack(path, tmp_path / "packed", PackSettings(), quiet)
    assert isinstance(find_head(tmp_path / "packed"), HeadMissing)
    aside = head_file(path)
    assert head_bytes(tmp_path / "packed", aside) == head_bytes(path, aside)
    assert isinstance(find_head(tmp_path / "packed", aside), HeadFound)
    joined = open_source(tmp_path / "packed", widen=False, head=aside)
    assert joined.alignment == 1
    assert joined.geometry.fingerprint != open_source(tmp_path / "packed", widen=False).geometry.fingerprint


@pytest.mark.parametrize("place", ["inside", "shard", "separate"])
def test_packing_keeps_a_head_from_every_place(tmp_path: Path, place: Any) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_5_moe", quant="q4g64", head=Head(place, "fused", quant="bf16"))
    aside = head_file(path) if place == "separate" else None
    pack(path, tmp_path / "packed", PackSettings(head=aside), quiet)
    assert head_bytes(tmp_path / "packed") == head_bytes(path, aside)
