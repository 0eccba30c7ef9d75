"""The head from every place and in every form its tensors have, and what is refused."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_daemon.engine.mtp.load import build_head
from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.head import HeadFound, HeadMissing, find_head
from support.checkpoints import Head, head_file, make_checkpoint, make_head_weights, make_model
from support.decoding import decoder, prompt_of, reference, run, target
from support.resident import resident_head, resident_target


def _parameters(head: MtpHead) -> dict[str, Any]:
    return {k: np.array(v.astype(mx.float32)) for k, v in tree_flatten(head.parameters())}


def _draft_logits(model: Any, head: MtpHead) -> bytes:
    embedded = model.model.embed_tokens(mx.array([prompt_of(6)]))
    out = head.step(head.join(embedded, embedded[:, ::-1]), head.make_cache())
    return np.array(out.astype(mx.float32)).tobytes()


PLACES = [
    Head("inside", "stacked"),
    Head("inside", "per_expert"),
    Head("inside", "fused"),
    Head("shard", "stacked"),
    Head("shard", "per_expert"),
    Head("separate", "fused"),
    Head("separate", "stacked", prefix=""),
    Head("separate", "per_expert", prefix=""),
]


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_one_head_in_every_form_is_one_head(family: str, tmp_path: Path) -> None:
    """The same draft logits and the same seven norms, shifted exactly once where the file is an original.

    Also from mtp.safetensors, which mlx-lm does not load.
    """
    expected = {k: np.array(v) for k, v in make_head_weights(family).items()}
    seen = set()
    for number, head in enumerate(PLACES):
        path = make_checkpoint(tmp_path / str(number), family, head=head)
        model, _ = load_model(path, strict=False)
        separate = head_file(path) if head.place == "separate" else None
        made = resident_head(model, path, separate)
        ours = _parameters(made)
        assert ours.keys() == expected.keys()
        for name, value in expected.items():
            assert np.array_equal(ours[name], value), (head, name)
        seen.add(_draft_logits(model, made))
    assert len(seen) == 1


def test_saved_and_loaded_twice(tmp_path: Path) -> None:
    """A head that was converted is not shifted again."""
    path = make_checkpoint(tmp_path / "a", "qwen3_next", head=Head("inside", "per_expert"))
    model, _ = load_model(path, strict=False)
    first = _parameters(resident_head(model, path))
    for number in range(2):
        sidecar = tmp_path / f"converted{number}" / "head.safetensors"
        sidecar.parent.mkdir()
        mx.save_safetensors(str(sidecar), {f"mtp.{k}": mx.array(v) for k, v in first.items()})
        again = _parameters(resident_head(model, path, sidecar))
        assert all(np.array_equal(again[k], v) for k, v in first.items())
        first = again


@pytest.mark.parametrize(
    ("trunk", "head"),
    [
        ("q4g64", "bf16"),
        ("bf16", "q4g64"),
        ("q8g64", "q4g32"),
        (None, "q8g64"),
        ("q4g64", None),
        ("q4g64/bf16", "q4g64/bf16"),
    ],
)
def test_kinds_come_from_the_tensors(trunk: str | None, head: str | None, tmp_path: Path) -> None:
    """A 4-bit trunk with a bf16 head and the reverse; the config says nothing of the head's kind."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant=trunk, head=Head(quant=head))
    model, _ = make_model("qwen3_next", quant=trunk)
    made = resident_head(model, path)
    kinds = {k: (v.dtype, v.shape) for k, v in tree_flatten(made.parameters()) if ".switch_mlp." not in k}
    files = {k: mx.load(str(t.file))[t.tensor] for k, t in found_head(path).tensors.items()}
    assert kinds == {k: (v.dtype, v.shape) for k, v in files.items()}
    out = made.step(made.join(*2 * [mx.zeros((1, 1, 128))]), made.make_cache())
    assert bool(mx.all(mx.isfinite(out)))


def found_head(path: Path) -> HeadFound:
    found = find_head(path)
    assert isinstance(found, HeadFound)
    return found


def test_float16_scales_do_not_narrow_the_activations(tmp_path: Path) -> None:
    """A head whose scales are float16 computes in float32, not in float16's range."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head(quant="q4g64/f16"))
    model, _ = make_model("qwen3_next")
    made = resident_head(model, path)
    out = made.step(made.join(*2 * [mx.full((1, 1, 128), 300.0)]), made.make_cache())
    assert out.dtype == mx.float32
    assert not [k for k, v in tree_flatten(made.parameters()) if v.dtype == mx.float16 and ".switch_mlp." not in k]


def test_declared_but_not_there(tmp_path: Path) -> None:
    """The config declares MTP and no tensor is there: one line why, and plain decoding with those very tokens."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    found = find_head(path)
    assert isinstance(found, HeadMissing) and "\n" not in found.why and "mtp" in found.why
    on, prompt = target("qwen3_next"), prompt_of(7)
    decoding = decoder(on, prompt, depth=2)
    assert run(decoding, 8) == reference(on, prompt, 8)
    assert decoding.stats()["speculation"].startswith("off: ")
    assert decoding.stats()["drafted"] == 0


@pytest.mark.parametrize("change", ["missing", "unknown", "second layer"])
def test_a_tensor_missing_or_unused_is_refused(change: str, tmp_path: Path) -> None:
    """A head whose tensors are not exactly the head's is refused by the tensor's name, never half used."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("shard"))
    file = path / "mtp.safetensors"
    tensors = dict(mx.load(str(file)))
    if change == "missing":
        del tensors["mtp.layers.0.self_attn.k_norm.weight"]
    elif change == "unknown":
        tensors["mtp.layers.0.self_attn.sinks"] = mx.zeros((4,))
    else:
        tensors |= {k.replace("layers.0", "layers.1"): v for k, v in tensors.items() if "layers.0" in k}
    mx.eval(tensors)
    mx.save_safetensors(str(file), tensors)
    model, _ = make_model("qwen3_next")
    named = {"missing": "k_norm", "unknown": "sinks", "second layer": "layers.1"}[change]
    with pytest.raises((DamagedCheckpoint, RequestRefused), match=named):
        resident_head(model, path)


def test_a_head_of_other_sizes_is_refused(tmp_path: Path) -> None:
    """A head of a wider model: its first wrong shape is named."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head(), changes={"head_dim": 64})
    model, _ = make_model("qwen3_next")
    with pytest.raises(RequestRefused, match=r"has shape .* the model asks for"):
        build_head(found_head(path), model, lambda head: None)


def test_an_original_checkpoint_decodes_with_its_head(tmp_path: Path) -> None:
    """End to end from the published layout: raw norms and convolution, per-expert, bf16 dense tensors."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", head=Head("inside", "per_expert"), layout="hf")
    on, prompt = resident_target(path), prompt_of(9)
    decoding = decoder(on, prompt, depth=3)
    assert run(decoding, 12) == reference(on, prompt, 12)
    assert decoding.stats()["drafted"] > 0
