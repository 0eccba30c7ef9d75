"""The judge is mlx-lm with everything resident, whatever lies beside the model's own tensors."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from mtp_daemon.bench.reference import load_resident
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from support.checkpoints import Head, make_checkpoint

IDS = mx.array([[3, 1, 4, 1, 5]])


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_a_head_among_the_model_s_tensors_is_passed_by(family: str, tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", family, quant="q4g64")
    with_head = make_checkpoint(tmp_path / "with-head", family, quant="q4g64", head=Head(quant="q4g64"))
    wanted = load_model(plain)[0](IDS)
    assert mx.array_equal(load_resident(with_head)[0](IDS), wanted)


def test_a_packed_store_s_experts_are_put_back_where_they_were(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", "qwen3_moe", quant="q4g64")
    pack(plain, tmp_path / "packed", PackSettings(scales="keep"), lambda line: None)
    assert mx.array_equal(load_resident(tmp_path / "packed")[0](IDS), load_model(plain)[0](IDS))


def test_a_tensor_that_is_missing_is_still_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "plain", "qwen3_next", quant="q4g64", head=Head())
    (file,) = directory.glob("model*.safetensors")
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    mx.eval(weights)
    mx.save_safetensors(str(file), {k: v for k, v in weights.items() if k != "model.norm.weight"})
    (directory / "model.safetensors.index.json").unlink()  # it would tell of it first
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        load_resident(directory)
