"""Experts are found in every layout, counted right, and refused by name where they cannot stream."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtp_loader.errors import DamagedCheckpoint, LoaderError, NotStreamable
from mtp_loader.store import open_source
from support.checkpoints import Head, make_checkpoint, make_model
from support.expert_bytes import all_bytes
from support.families import EXPERTS, FAMILIES, TOP_K
from support.rewrite import drop, edit_config, edit_tensors, retype


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt_oss"])
def test_per_expert_stacked_and_fused_are_the_same_experts(tmp_path: Path, family: str) -> None:
    stacked, per_expert, fused = (
        open_source(make_checkpoint(tmp_path / layout, family, layout=layout), widen=False)
        for layout in ("mlx", "hf", "fused")
    )
    assert all_bytes(stacked) == all_bytes(per_expert) == all_bytes(fused)
    assert stacked.geometry.banks == per_expert.geometry.banks == fused.geometry.banks
    assert (stacked.geometry.reads_per_expert, fused.geometry.reads_per_expert) == (3, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plane_s_row_is_the_expert_s_slice_of_mlx_s_tensor(tmp_path: Path, family: str) -> None:
    """Against MLX's own reading of the file, so that no offset of ours is trusted."""
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    source = open_source(path, widen=False)
    weights = mx.load(str(path / "model.safetensors"))
    assert isinstance(weights, dict)
    for layer in source.geometry.layers:
        names = [n for n in weights if f".layers.{layer.layer}." in n and n.endswith("up_proj.weight")]
        name = next(n for n in names if weights[n].ndim == 3)
        rows = all_bytes(source)
        bank = source.geometry.banks[layer.bank]
        at = sum(p.source_bytes for p in bank.planes[: [p.name for p in bank.planes].index("up.weight")])
        for expert in range(layer.experts):
            wanted = memoryview(weights[name][expert]).tobytes()
            assert rows[layer.layer, expert][at : at + len(wanted)] == wanted


def test_a_missing_expert_is_named_with_its_layer(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", layout="hf")
    drop(path, "layers.1.mlp.experts.5.")
    with pytest.raises(DamagedCheckpoint, match="layer 1, expert 5"):
        open_source(path, widen=False)


def test_half_an_expert_is_named_too(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", layout="hf")
    drop(path, "layers.2.mlp.experts.7.up_proj")
    with pytest.raises(DamagedCheckpoint, match=r"layer 2, expert 7: its up\.weight"):
        open_source(path, widen=False)


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("layout", ["mlx", "hf"])
def test_the_number_of_experts_under_every_spelling(tmp_path: Path, key: str, nested: bool, layout: Any) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", layout=layout)
    keys: dict[str, Any] = {"num_experts": None, key: EXPERTS}
    edit_config(path, **({"num_experts": None, "text_config": {key: EXPERTS}} if nested else keys))
    layers = open_source(path, widen=False).geometry.layers
    assert [(y.experts, y.top_k) for y in layers] == [(EXPERTS, TOP_K)] * 3
    edit_config(path, **({"text_config": {key: EXPERTS + 1}} if nested else {key: EXPERTS + 1}))
    with pytest.raises(DamagedCheckpoint):
        open_source(path, widen=False)


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    drop(path, "switch_mlp")
    with pytest.raises(NotStreamable, match="nothing to stream"):
        open_source(path, widen=False)


def test_experts_that_are_not_gated_are_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    drop(path, "switch_mlp.gate_proj")
    with pytest.raises(NotStreamable, match=r"gate\.weight"):
        open_source(path, widen=False)


@pytest.mark.parametrize("layout", ["mlx", "hf"])
def test_fp8_is_refused_by_name(tmp_path: Path, layout: Any) -> None:
    """MLX loads FP8 as bytes without an error: the numbers would be nonsense."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", layout=layout)

    def to_bytes(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        return {n: v.astype(mx.uint8) if "up_proj" in n else v for n, v in weights.items()}

    edit_tensors(path, to_bytes)
    name = next(n for n in mx.load(str(path / "model.safetensors")) if "up_proj" in n)
    retype(path / "model.safetensors", name, "F8_E4M3")
    with pytest.raises(NotStreamable, match=r"FP8 \(F8_E4M3\)"):
        open_source(path, widen=False)


def test_a_dense_fp8_tensor_is_refused_too(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    edit_tensors(path, lambda w: {n: v.astype(mx.uint8) if n == "lm_head.weight" else v for n, v in w.items()})
    retype(path / "model.safetensors", "lm_head.weight", "F8_E5M2")
    with pytest.raises(NotStreamable, match=r"lm_head\.weight is FP8"):
        open_source(path, widen=False)


def test_gpt_oss_as_published_must_be_packed_first(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "gpt_oss", quant="mxfp4", layout="hf")
    with pytest.raises(NotStreamable, match="pack"):
        open_source(path, widen=False)


def test_a_transposed_fused_layout_is_refused(tmp_path: Path) -> None:
    """`[E, hidden, 2 inner]` read as `[E, 2 inner, hidden]` would give wrong experts silently."""
    path = make_checkpoint(tmp_path / "m", "qwen3_5_moe", layout="fused")
    edit_tensors(path, lambda w: {n: mx.contiguous(v.swapaxes(1, 2)) if ".experts." in n else v for n, v in w.items()})
    with pytest.raises(NotStreamable, match="2 x inner"):
        open_source(path, widen=False)


def test_more_active_experts_than_there_are(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    edit_config(path, num_experts_per_tok=EXPERTS + 1)
    with pytest.raises(DamagedCheckpoint, match="top-9"):
        open_source(path, widen=False)
    edit_config(path, num_experts_per_tok=None)
    with pytest.raises(DamagedCheckpoint, match="num_experts_per_tok"):
        open_source(path, widen=False)


def test_layers_past_the_last_and_vision_towers_are_not_the_trunk_s(tmp_path: Path) -> None:
    """GLM's and DeepSeek's own MTP layer sits at N; a vision tower may hold experts of its own."""
    path = make_checkpoint(tmp_path / "m", "glm4_moe", quant="q4g64")
    before = open_source(path, widen=False).geometry.layers

    def add(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        extra = {n.replace("layers.2.", "layers.3."): v for n, v in weights.items() if "layers.2." in n}
        tower = {"vision_tower." + n: v for n, v in weights.items() if "layers.2." in n}
        return {**weights, **extra, **tower, "model.layers.3.eh_proj.weight": mx.zeros((4, 8))}

    edit_tensors(path, add)
    assert open_source(path, widen=False).geometry.layers == before


def test_every_tensor_of_a_layer_must_have_its_siblings_shape(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", layout="hf")
    odd = "model.layers.0.mlp.experts.3.down_proj.weight"
    edit_tensors(path, lambda w: {n: v[:64] if n == odd else v for n, v in w.items()})
    with pytest.raises(DamagedCheckpoint, match="siblings"):
        open_source(path, widen=False)


def test_the_extents_of_an_unknown_expert(tmp_path: Path) -> None:
    source = open_source(make_checkpoint(tmp_path / "m", "glm4_moe", quant="q4g64"), widen=False)
    for key in [(0, 0), (3, 0), (1, EXPERTS), (1, -1)]:  # layer 0 is dense
        with pytest.raises(KeyError):
            source.extents(*key)


def test_models_of_one_shape_have_different_fingerprints(tmp_path: Path) -> None:
    """Told by their bytes: copied within one second, files of two models may even have one time of change."""
    paths = [make_checkpoint(tmp_path / str(seed), "qwen3_moe", quant="q4g64", seed=seed) for seed in (0, 1)]
    for path in paths:
        os.utime(path / "model.safetensors", ns=(1, 1))
    first, other = (open_source(path, widen=False) for path in paths)
    assert first.geometry.banks == other.geometry.banks
    assert first.geometry.fingerprint != other.geometry.fingerprint


def test_a_fingerprint_is_stable_and_sees_an_edit_in_place(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    before = open_source(path, widen=False).geometry.fingerprint
    assert open_source(path, widen=True).geometry.fingerprint == before
    file = path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 32 - 1] ^= 1  # between two samples
    file.write_bytes(raw)
    assert open_source(path, widen=False).geometry.fingerprint != before


def test_a_head_s_layers_come_behind_the_trunk_s(tmp_path: Path) -> None:
    source = open_source(make_checkpoint(tmp_path / "m", "qwen3_next", head=Head()), widen=False)
    assert [(y.layer, y.is_head) for y in source.geometry.layers] == [(n, n == 4) for n in range(5)]
    assert source.geometry.worst_bytes_per_token == 4 * TOP_K * source.geometry.banks[0].source_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_number_of_layers_is_refused_or_fewer(tmp_path: Path, family: str) -> None:
    """A config that claims a billion layers must not make anyone build them."""
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    edit_config(path, num_hidden_layers=10**9, text_config=None)
    with pytest.raises(LoaderError):
        open_source(path, widen=False)


def test_the_fixtures_model_is_the_checkpoint_s(tmp_path: Path) -> None:
    """make_model and make_checkpoint with one seed give the same numbers, which other tests rely on."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe")
    model, _ = make_model("qwen3_moe")
    weights = mx.load(str(path / "model.safetensors"))
    assert isinstance(weights, dict)
    assert mx.array_equal(weights["lm_head.weight"], model.lm_head.weight)
