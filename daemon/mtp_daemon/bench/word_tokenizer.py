"""The tokenizer of a synthetic model: token t is the word `w{t}`, words are apart by blanks."""

import json
from pathlib import Path
from typing import Any


def write_word_tokenizer(directory: Path, tokens: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for `tokens` words into `directory`."""
    vocabulary = {f"w{t}": t for t in range(tokens)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
