"""Writes the original Hugging Face layout of Qwen3-Next: one tensor an expert, ``mtp.*``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from .data import EOS
from .model import DemoModel


def original_tensors(model: DemoModel) -> dict[str, Tensor]:
    """The state dict with stacked experts taken apart; norms stay zero-centred.

    The output layer is tied to the embedding, so no ``lm_head.weight`` is written.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        value = value.detach().float()
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            for e, both in enumerate(value):
                gate, up = both.chunk(2, dim=0)
                tensors[f"{prefix}{e}.gate_proj.weight"] = gate.clone()
                tensors[f"{prefix}{e}.up_proj.weight"] = up.clone()
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            for e, down in enumerate(value):
                tensors[f"{prefix}{e}.down_proj.weight"] = down.clone()
        else:
            tensors[name] = value.contiguous()
    return tensors


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(model: DemoModel, tokenizer: Tokenizer, out: Path, report: dict[str, object]) -> None:
    """Writes ``out`` (a directory, replaced whole): weights, config, tokenizer, TRAINING.json."""
    fresh = out.with_name(out.name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    eos = tokenizer.token_to_id(EOS)
    save_file(original_tensors(model), fresh / "model.safetensors", metadata={"format": "pt"})
    (fresh / "model.safetensors").chmod(0o644)  # safetensors makes it private
    _json(fresh / "config.json", model.shape.hf_config(eos))
    _json(fresh / "generation_config.json", {"eos_token_id": eos, "do_sample": False})
    tokenizer.save(str(fresh / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.shape.max_positions,
    }
    _json(fresh / "tokenizer_config.json", settings)
    _json(fresh / "TRAINING.json", report)
    shutil.rmtree(out, ignore_errors=True)
    os.rename(fresh, out)
