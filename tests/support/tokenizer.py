"""A tokenizer of bytes that mlx-lm reads offline: ids 0..255 are bytes, 256 ends a text, the rest are words."""

import json
from pathlib import Path
from typing import Any

EOS = 256


def _byte_names() -> list[str]:
    """The printable stand-ins that byte-level BPE gives the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in plain}
    others = [b for b in range(256) if b not in names]
    names.update({b: chr(256 + i) for i, b in enumerate(others)})
    return [names[b] for b in range(256)]


def write_tokenizer(directory: Path, vocab: int, *, chat_template: str | None = None) -> None:
    """Write tokenizer.json and tokenizer_config.json for a vocabulary of `vocab` ids (more than 256)."""
    entries = {name: i for i, name in enumerate(_byte_names())}
    entries["<|end|>"] = EOS
    entries.update({f"\u0120w{i}": i for i in range(EOS + 1, vocab)})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {
        "id": EOS,
        "content": "<|end|>",
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": entries, "merges": [], "byte_fallback": False, "fuse_unk": False},
    }
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
