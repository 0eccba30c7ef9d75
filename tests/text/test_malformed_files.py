"""Files that somebody wrote wrongly are the user's to mend: refused by name, never a bug of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.model import _context
from mtp_daemon.engine.text import load_vocabulary
from support.tokenizer import write_tokenizer

Change = Callable[[Path], Any]


def text(name: str, value: str) -> Change:
    return lambda directory: (directory / name).write_text(value)


def edited(name: str, **fields: Any) -> Change:
    def change(directory: Path) -> None:
        stored = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(stored | fields))

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (text("tokenizer.json", "{"), "tokenizer.json"),
        (text("tokenizer.json", "[]"), "tokenizer.json"),
        (text("tokenizer.json", "[" * 100_000), "tokenizer.json"),
        (text("tokenizer.json", "{}"), "tokenizer in"),
        (edited("tokenizer.json", model={"type": "Magic"}), "tokenizer in"),
        (edited("tokenizer.json", model=None), "tokenizer in"),
        (edited("tokenizer.json", added_tokens=5), "tokenizer in"),
        (edited("tokenizer.json", decoder=7), "tokenizer in"),
        (lambda directory: (directory / "tokenizer.json").write_bytes(b"\xff\xfe"), "tokenizer.json"),
        (text("tokenizer_config.json", "nonsense"), "tokenizer_config.json"),
        (text("tokenizer_config.json", "3"), "tokenizer_config.json"),
        (edited("tokenizer_config.json", chat_template="{% for"), "tokenizer_config.json"),
        (edited("tokenizer_config.json", chat_template=5), "chat template"),
        (text("chat_template.jinja", "{{ messages"), "chat_template.jinja"),
        (text("special_tokens_map.json", "{"), "special_tokens_map.json"),
        (text("generation_config.json", "["), "generation_config.json"),
        (text("generation_config.json", '"x"'), "generation_config.json"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, change: Change, named: str) -> None:
    write_tokenizer(tmp_path, 300)
    change(tmp_path)
    with pytest.raises(RequestRefused) as refused:
        load_vocabulary(tmp_path, {"vocab_size": 300})
    assert named in str(refused.value) and str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [0, -1, 1, 15, "x", [4096], True, 4096.5, float("inf"), float("nan"), {}])
def test_a_context_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(RequestRefused, match="max_position_embeddings"):
        _context({"max_position_embeddings": value})


def test_a_context_may_be_absent_or_enormous() -> None:
    assert _context({}) is None and _context({"max_position_embeddings": None}) is None
    assert _context({"max_position_embeddings": 4096}) == _context({"max_position_embeddings": 4096.0}) == 4096
    assert _context({"text_config": {"max_position_embeddings": 64}, "max_position_embeddings": 32}) == 64
    assert 1 << 24 < (_context({"max_position_embeddings": 10**400}) or 0) < 1 << 63  # it travels in a message


@pytest.mark.parametrize("value", [0, -1, "x", [300]])
def test_a_vocabulary_of_no_size_is_refused(tmp_path: Path, value: Any) -> None:
    write_tokenizer(tmp_path, 300)
    with pytest.raises(RequestRefused, match="vocab_size"):
        load_vocabulary(tmp_path, {"vocab_size": value})
