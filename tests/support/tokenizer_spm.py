"""A tokenizer in sentencepiece's manner: words with a leading mark, bytes as <0xNN>, a space dropped at the start."""

import json
from pathlib import Path

BYTE_0 = 3
WORDS = ["▁", "▁hello", "▁world", "hel", "lo", "!", "▁a", "b", "\n", "é", "你"]


def write_spm_tokenizer(directory: Path) -> None:
    """Ids 0..2 are special (2 ends a text), 3..258 the bytes, then `WORDS`."""
    entries = {"<unk>": 0, "<s>": 1, "</s>": 2}
    entries.update({f"<0x{b:02X}>": BYTE_0 + b for b in range(256)})
    entries.update({word: 259 + i for i, word in enumerate(WORDS)})
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    mark = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    model = {
        "type": "BPE",
        "vocab": entries,
        "merges": [],
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": "<unk>",
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": c, **special} for i, c in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [mark, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": model,
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
