"""How many tokens a text has at least, told without tokenising all of it: a prompt of megabytes is refused at once.

Byte-level vocabularies allow a proof: nothing of the text is lost, so it has no fewer tokens than its bytes over the
bytes of the longest token. Others, and what the proof lets pass, are judged by a piece from the text's beginning.
"""

import json
from collections.abc import Callable
from typing import Any

# What the rest of a text can change about the tokens of its beginning is the last word of it. A quarter is far more.
_MARGIN, _LAST_WORD = 4, 64
_CHARACTERS_A_TOKEN = 4


def at_least(text: str, most: int, longest: int | None, count: Callable[[str], int]) -> int:
    """A number of tokens that `text` has at least, or 0 where `most` of them may be enough for it.

    `longest` is the bytes of the longest token, where `longest_token` found that to prove something; `text` is
    normalised then. `count` tokenises a piece. A text that is not several times as long as `most` tokens usually are
    costs nothing here.
    """
    if longest and (proved := -(-len(text.encode()) // longest)) > most:
        return proved
    piece = _CHARACTERS_A_TOKEN * most
    while 2 * piece < len(text):
        if (counted := count(text[:piece])) > most + most // _MARGIN + _LAST_WORD:
            return counted
        piece *= 2
    return 0


def longest_token(tokenizer: Any) -> int | None:
    """Bytes of the longest token, where a normalised text's tokens spell every byte of it; else None.

    That is so for byte-level BPE that has all 256 bytes, drops no separators, and has no added token that swallows the
    white space around it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE" or not _spells_bytes(backend.pre_tokenizer):
        return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if sum(len(token) == 1 for token in vocabulary) < 256:
        return None
    # One character of such a token stands for one byte.
    return max(*map(len, vocabulary), *(len(token.content.encode()) for token in added), 1)


def normalised(tokenizer: Any, text: str) -> str:
    """The text as the tokenizer's model sees it."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return text if normalizer is None else str(normalizer.normalize_str(text))


def _spells_bytes(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return False
    state = json.loads(pre_tokenizer.__getstate__())
    steps = state.get("pretokenizers", [state])
    kept = all(s["type"] in ("ByteLevel", "Digits") or s.get("behavior", "Removed") != "Removed" for s in steps)
    return kept and any(s["type"] == "ByteLevel" for s in steps)
