"""`mtpd serve` on a model whose files are wrong: a sentence, and exit code 2, after which nobody starts it again."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from support.checkpoints import Head, make_checkpoint
from support.served_model import ServedModel
from support.tokenizer import write_tokenizer

Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("model") / "plain", "qwen3_next", head=Head())
    write_tokenizer(path, json.loads((path / "config.json").read_text())["vocab_size"])
    return path


@pytest.fixture(scope="module")
def packed(plain: Path) -> Path:
    pack(plain, plain.parent / "packed", PackSettings(), lambda line: None)
    return plain.parent / "packed"


def config(**fields: Any) -> Change:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def refusal(source: Path, tmp_path: Path, change: Change) -> str:
    """What serve says last on a damaged copy of `source`."""
    model = Path(shutil.copytree(source, tmp_path / "damaged"))
    change(model)
    with ServedModel(model) as front:
        errors = front.errors()
        assert front.process.returncode == 2, errors
    assert "Traceback" not in errors
    assert errors.count("engine started") <= 1
    last = errors.splitlines()[-1]
    assert last.startswith("mtpd: ")
    return last


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: (m / "tokenizer.json").write_text("{"), "tokenizer.json"),
        (lambda m: (m / "chat_template.jinja").write_text("{% if"), "chat_template.jinja"),
        (config(max_position_embeddings=-1), "max_position_embeddings"),
        (config(hidden_size="x"), "config.json"),
        (config(num_attention_heads=0), "config.json"),
        (config(vocab_size=[]), "config.json"),
        (lambda m: (m / "config.json").write_text("{"), "config.json"),
    ],
)
def test_a_checkpoint_with_a_wrong_file(plain: Path, tmp_path: Path, change: Change, named: str) -> None:
    assert named in refusal(plain, tmp_path, change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: (m / "mtp-dense.safetensors").unlink(), "mtp-dense.safetensors: is missing"),
        (lambda m: os.truncate(m / "experts-00001.bin", 4096), "experts-00001.bin: has 4096 bytes but should have"),
        (lambda m: (m / "tokenizer.json").write_bytes((m / "tokenizer.json").read_bytes()[::-1]), "tokenizer.json"),
    ],
)
def test_a_packed_store_with_a_wrong_file(packed: Path, tmp_path: Path, change: Change, named: str) -> None:
    assert named in refusal(packed, tmp_path, change)
