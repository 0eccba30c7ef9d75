"""A prompt that cannot fit is refused before it is tokenised whole; one that fits never is."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_daemon.engine.text import Vocabulary, load_vocabulary
from mtp_daemon.engine.text.length import at_least
from mtp_loader.store.resolve import resolve_model
from support.tokenizer import write_tokenizer
from support.tokenizer_spm import write_spm_tokenizer

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"


def _demo() -> Vocabulary:
    path = resolve_model("demo")
    return load_vocabulary(path, json.loads((path / "config.json").read_text()))


DEMO = _demo()


@given(st.text(st.sampled_from(" \n\tthe ofGodéß漢\U0001f600.,"), max_size=400), st.integers(1, 60))
def test_no_prompt_has_fewer_tokens_than_is_said(text: str, most: int) -> None:
    """The proof is about this very tokenizer: white space, whole words and characters of many bytes."""
    assert DEMO.longest is not None
    whole = len(DEMO.tokenizer.encode(text, add_special_tokens=False))
    assert at_least(text, most, DEMO.longest, lambda piece: 0) <= whole
    # What a piece tells refuses nothing that fits.
    assert whole > most or DEMO.at_least(text, most, raw=True, system=None) == 0


class _Counting:
    """A tokenizer that tells how many characters it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.characters = 0
        self._tokenizer = tokenizer

    def encode(self, text: str, **settings: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer.encode(text, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("text", ["In the beginning ", "a", " ", "漢"])
def test_megabytes_are_refused_after_a_look_at_kilobytes(text: str) -> None:
    counting = _Counting(DEMO.tokenizer)
    prompt = text * ((4 << 20) // len(text.encode()))
    for longest in (DEMO.longest, None):
        vocabulary = Vocabulary(counting, DEMO.eos, DEMO.size, longest)
        assert vocabulary.at_least(prompt, 2047, raw=True, system=None) > 2047
        assert counting.characters <= 1 << 16, "almost all of it was tokenised"


def test_what_a_template_drops_is_not_counted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 300, chat_template=TEMPLATE)
    vocabulary = load_vocabulary(tmp_path, {"vocab_size": 300})
    prompt = " " * 100_000 + "hi"
    assert vocabulary.at_least(prompt, 20, raw=False, system=None) == 0
    assert vocabulary.encode(prompt, raw=False, system=None) == tuple(b"[user]hi")
    assert vocabulary.at_least("x" * 100_000, 20, raw=False, system=None) > 20


def test_nothing_is_proved_where_a_tokenizer_may_lose_text(tmp_path: Path) -> None:
    write_spm_tokenizer(tmp_path)
    assert load_vocabulary(tmp_path, {"vocab_size": 270}).longest is None
    write_tokenizer(tmp_path, 300)
    assert load_vocabulary(tmp_path, {"vocab_size": 300}).longest is not None
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    stored["added_tokens"][0]["rstrip"] = True  # it swallows any white space after it
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert load_vocabulary(tmp_path, {"vocab_size": 300}).longest is None
