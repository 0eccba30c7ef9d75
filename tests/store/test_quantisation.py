"""Bits, group and mode come from the tensors themselves."""

from pathlib import Path

import pytest

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store import HeadFound, find_head, open_source
from mtp_loader.store.quantisation import Part, infer
from mtp_protocol.geometry import Quantisation
from support.checkpoints import Head, make_checkpoint
from support.rewrite import drop, edit_config

AFFINE = [f"q{bits}g{group}" for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64)]
PLANES = {"affine": 9, "mxfp4": 6, "mxfp8": 6, "nvfp4": 6}


@pytest.mark.parametrize("quant", [*AFFINE, "mxfp4", "mxfp8", "nvfp4", "q4g64/bf16"])
@pytest.mark.parametrize("config", ["silent", "wrong"])
def test_every_mode_whatever_the_config_says(tmp_path: Path, quant: str, config: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant=quant)
    edit_config(path, quantization=None if config == "silent" else {"bits": 7, "group_size": 31, "mode": "fp3"})
    (bank,) = open_source(path, widen=True).geometry.banks
    fixed = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
    name = quant.split("/")[0]
    bits, group = fixed.get(name) or (int(name[1]), int(name[3:]))
    wanted = Quantisation(name if name in fixed else "affine", bits, group)  # type: ignore[arg-type]
    assert (bank.gate, bank.up, bank.down) == (wanted, wanted, wanted)
    assert len(bank.planes) == PLANES[wanted.mode]


def test_layers_of_mixed_bits_get_banks_of_their_own(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="mixed")
    banks = open_source(path, widen=False).geometry.banks
    assert [(b.layers, b.gate.bits, b.down.bits) for b in banks] == [((0, 3), 4, 4), ((1,), 6, 6), ((2,), 4, 8)]


@pytest.mark.parametrize(("trunk", "head"), [("q4g64", "bf16"), ("bf16", "q4g32"), ("q4g64", "q8g64"), (None, "mxfp4")])
def test_trunk_and_head_of_different_kinds(tmp_path: Path, trunk: str | None, head: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant=trunk, head=Head(quant=head))
    edit_config(path, quantization=None)
    geometry = open_source(path, widen=False).geometry
    found = find_head(path)
    assert isinstance(found, HeadFound)
    wanted = {
        "bf16": Quantisation(),
        "q4g32": Quantisation("affine", 4, 32),
        "q8g64": Quantisation("affine", 8, 64),
        "mxfp4": Quantisation("mxfp4", 4, 32),
    }[head]
    assert geometry.banks[geometry.layers[-1].bank].gate == wanted
    assert found.quantisation["fc"] == found.quantisation["layers.0.self_attn.o_proj"] == wanted
    router = Quantisation() if head == "bf16" else Quantisation("affine", 8, 64)
    assert found.quantisation["layers.0.mlp.gate"] == router


def test_experts_in_plain_floats_are_widened_only_when_asked(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "gpt_oss", quant="bf16")
    for widen, dtype in ((True, "float32"), (False, "bfloat16")):
        (bank,) = open_source(path, widen=widen).geometry.banks
        assert {(p.source_dtype, p.dtype) for p in bank.planes} == {("bfloat16", dtype)}
    assert bank.slot_bytes == bank.source_bytes


def test_a_quantised_expert_keeps_the_type_of_its_scales_and_bias(tmp_path: Path) -> None:
    """Widening them would change the numbers mlx-lm computes from the same checkpoint."""
    path = make_checkpoint(tmp_path / "m", "gpt_oss", quant="q4g64/bf16")
    (bank,) = open_source(path, widen=True).geometry.banks
    assert {p.dtype for p in bank.planes if not p.name.endswith("weight")} == {"bfloat16"}


@pytest.mark.parametrize("part", ["scales", "biases"])
def test_a_quantised_weight_without_its_scales_or_biases_is_refused(tmp_path: Path, part: str) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    drop(path, f"layers.1.mlp.switch_mlp.up_proj.{part}")
    with pytest.raises(DamagedCheckpoint, match="layer 1, up"):
        open_source(path, widen=False)


@pytest.mark.parametrize(
    ("weight", "scales"),
    [
        (Part("uint32", (4, 16)), Part("uint8", (4, 2))),  # 4 bits in groups of 64 with byte scales
        (Part("uint32", (4, 16)), Part("float32", (4, 0))),
        (Part("uint32", (4, 16)), Part("float32", (3, 2))),
        (Part("uint32", (4, 17)), Part("float32", (4, 2))),
        (Part("uint32", (4, 28)), Part("float32", (4, 2))),  # 7 bits
        (Part("bfloat16", (4, 16)), Part("float32", (4, 2))),
    ],
)
def test_shapes_that_fit_no_mode_are_refused(weight: Part, scales: Part) -> None:
    with pytest.raises(DamagedCheckpoint):
        infer({"weight": weight, "scales": scales, "biases": scales}, 128, "here", "file")
