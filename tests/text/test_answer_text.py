"""An answer's text as its tokens come, over a byte-level BPE and a sentencepiece-like vocabulary."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_daemon.engine.text import AnswerText, Piece, Vocabulary, load_vocabulary
from support.tokenizer import EOS, write_tokenizer
from support.tokenizer_spm import BYTE_0, WORDS, write_spm_tokenizer

FAMILY = "\U0001f468‍\U0001f469‍\U0001f467"  # three people joined by ZWJ
FLAG = "\U0001f3f3️‍\U0001f308"
TEXTS = [
    "plain",
    "smile \U0001f600 done",
    FAMILY,
    FLAG,
    "שָׁלוֹם",
    "e\u0301a\u0308n\u0303",
    "你好，世界",
    "Ünïcode\n\n  two",
]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    directory: Path = tmp_path_factory.mktemp("bpe")
    write_tokenizer(directory, 300)
    return load_vocabulary(directory, {"vocab_size": 300})


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    directory: Path = tmp_path_factory.mktemp("spm")
    write_spm_tokenizer(directory)
    return load_vocabulary(directory, {"vocab_size": 259 + len(WORDS)})


def spm_bytes(text: str) -> list[int]:
    return [BYTE_0 + b for b in text.encode()]


def spm_word(word: str) -> int:
    return 259 + WORDS.index(word)


def pieces_of(answer: AnswerText, ids: Sequence[int], run: int = 1) -> list[Piece]:
    pieces = [answer.add(ids[i : i + run]) for i in range(0, len(ids), run)]
    return [piece for piece in [*pieces, answer.finish()] if piece is not None]


def joined(pieces: Sequence[Piece]) -> str:
    at = pieces[0].seq if pieces else 0
    for piece in pieces:
        assert piece.seq == at, "no id is skipped or sent twice"
        at += len(piece.ids)
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("run", [1, 2, 3, 5])
def test_the_joined_stream_is_the_whole_decoding_over_bytes(bpe: Vocabulary, text: str, run: int) -> None:
    """One byte a token, every character broken over tokens."""
    ids = list(text.encode())
    pieces = pieces_of(AnswerText(bpe.decode, bpe.eos), ids, run)
    assert joined(pieces) == bpe.decode(ids) == text
    assert not any("\ufffd" in piece.text for piece in pieces)


@pytest.mark.parametrize("text", TEXTS)
def test_the_joined_stream_is_the_whole_decoding_with_byte_fallback(spm: Vocabulary, text: str) -> None:
    """CJK over byte tokens between words; the decoder drops the first word's space, and only that."""
    ids = [spm_word("▁hello"), *spm_bytes(text), spm_word("▁world"), spm_word("▁a"), *spm_bytes(text), spm_word("!")]
    pieces = pieces_of(AnswerText(spm.decode, spm.eos), ids)
    assert joined(pieces) == spm.decode(ids) == f"hello{text} world a{text}!"
    assert len(pieces) > 5, "a stream, not one piece at the end"
    assert not any("\ufffd" in piece.text for piece in pieces)


@pytest.mark.parametrize("silent", [[], [5000], [5000, 5001]], ids=str)
def test_a_space_is_dropped_only_where_the_text_begins(spm: Vocabulary, silent: list[int]) -> None:
    """A window that began with ids without text (past a padded vocabulary's end) would drop the next word's space."""
    ids = [1, spm_word("▁hello"), *silent, spm_word("▁world"), spm_word("▁"), spm_word("▁a"), *silent, spm_word("▁a")]
    assert joined(pieces_of(AnswerText(spm.decode, spm.eos), ids)) == spm.decode(ids)


@given(st.lists(st.integers(0, 299).filter(lambda t: t != EOS), max_size=40), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_any_ids_at_all(bpe: Vocabulary, ids: list[int], run: int) -> None:
    """Random bytes too: what is broken for good is let go, and nothing is lost, whatever the runs."""
    pieces = pieces_of(AnswerText(bpe.decode, bpe.eos), ids, run)
    assert joined(pieces) == bpe.decode(ids)
    assert sum((piece.ids for piece in pieces), ()) == tuple(ids)


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_answer_cut_inside_a_character_ends_with_a_replacement(bpe: Vocabulary, cut: int) -> None:
    """U+FFFD at the very end, never before it."""
    ids = list("a你好\U0001f600".encode())[:cut]
    pieces = pieces_of(AnswerText(bpe.decode, bpe.eos), ids)
    assert joined(pieces) == bpe.decode(ids)
    assert "\ufffd" not in joined(pieces).rstrip("\ufffd")
    assert not any("\ufffd" in piece.text for piece in pieces[:-1])


def test_broken_bytes_do_not_hold_the_rest_back(bpe: Vocabulary) -> None:
    answer = AnswerText(bpe.decode, bpe.eos)
    released = [answer.add([0xE4]) for _ in range(20)]
    assert sum(len(piece.ids) for piece in released if piece) >= 16


@pytest.mark.parametrize("run", [1, 2, 4, 9])
def test_text_ends_before_a_stop_string_over_several_tokens(bpe: Vocabulary, run: int) -> None:
    """And none of the stop string is shown before it is whole."""
    answer = AnswerText(bpe.decode, bpe.eos, ["</end>"])
    pieces = pieces_of(answer, list(b"answer</end>more"), run)
    assert joined(pieces) == "answer"
    assert answer.ended
    assert sum((piece.ids for piece in pieces), ()) == tuple(b"answer")


def test_an_unfinished_stop_string_is_let_go(bpe: Vocabulary) -> None:
    """`</e` may begin the stop string and is held; the next letter shows that it does not."""
    answer = AnswerText(bpe.decode, bpe.eos, ["</end>", "zzz"])
    assert answer.add(list(b"x</e")) == Piece(0, (ord("x"),), "x")
    assert answer.add(list(b"a")) == Piece(1, tuple(b"</ea"), "</ea")
    assert not answer.ended


def test_what_is_held_comes_out_at_the_end(bpe: Vocabulary) -> None:
    answer = AnswerText(bpe.decode, bpe.eos, ["stop"])
    assert joined(pieces_of(answer, list(b"go sto"))) == "go sto"
    assert not answer.ended


@pytest.mark.parametrize("run", [1, 6])
def test_the_first_stop_string_that_is_whole_counts(bpe: Vocabulary, run: int) -> None:
    """Whatever the runs: "cd" is whole before "bcde" is; of "d" and "cd", whole at once, the longer begins earlier."""
    answer = AnswerText(bpe.decode, bpe.eos, ["d", "cd", "bcde"])
    assert joined(pieces_of(answer, list(b"abcdef"), run)) == "ab"


def test_a_token_that_reaches_into_the_stop_string_is_cut(spm: Vocabulary) -> None:
    """The id is the answer's, for its first letters are; the text is not."""
    answer = AnswerText(spm.decode, spm.eos, ["lo w"])
    pieces = pieces_of(answer, [spm_word("▁a"), spm_word("▁hello"), spm_word("▁world")])
    assert joined(pieces) == "a hel"
    assert sum((piece.ids for piece in pieces), ()) == (spm_word("▁a"), spm_word("▁hello"))


def test_a_stop_string_of_several_bytes_a_character(bpe: Vocabulary) -> None:
    answer = AnswerText(bpe.decode, bpe.eos, ["好"])
    assert joined(pieces_of(answer, list("你好吗".encode()))) == "你"


def test_an_end_of_text_id_ends_the_answer_and_has_no_text(bpe: Vocabulary) -> None:
    """What follows it in a run is not the answer's."""
    answer = AnswerText(bpe.decode, bpe.eos, ["never"])
    assert answer.add([ord("a"), ord("n"), EOS, ord("b")]) == Piece(0, (ord("a"), ord("n"), EOS), "an")
    assert answer.ended
    assert answer.finish() is None


def test_an_empty_stop_string_is_refused(bpe: Vocabulary) -> None:
    with pytest.raises(ValueError, match="empty"):
        AnswerText(bpe.decode, bpe.eos, ["ok", ""])


@pytest.mark.parametrize("at", range(14))
def test_after_a_crash_the_text_goes_on_where_it_was(bpe: Vocabulary, at: int) -> None:
    """The delivered ids are fed silently; their text is not sent again and none is lost, in other runs than before."""
    ids = list("x</e你\U0001f600b end".encode())
    first = AnswerText(bpe.decode, bpe.eos, ["</end>"])
    before = [piece for i in range(at) if (piece := first.add(ids[i : i + 1])) is not None]
    delivered = [token for piece in before for token in piece.ids]
    second = AnswerText(bpe.decode, bpe.eos, ["</end>"], delivered)
    assert second.released == len(delivered)
    after = pieces_of(second, ids[len(delivered) :], 3)
    assert joined([*before, *after]) == bpe.decode(ids)


def test_delivered_ids_may_end_inside_a_character(bpe: Vocabulary) -> None:
    ids = list("a你b".encode())
    answer = AnswerText(bpe.decode, bpe.eos, [], ids[:2])
    assert pieces_of(answer, ids[2:], 9) == [Piece(2, tuple(ids[2:]), "你b")]


@pytest.mark.parametrize(("delivered", "ended"), [([65, EOS], True), ([65, 66], False)])
def test_an_answer_that_had_ended_before_the_crash_has_ended(
    bpe: Vocabulary, delivered: list[int], ended: bool
) -> None:
    answer = AnswerText(bpe.decode, bpe.eos, [], delivered)
    assert answer.ended is ended
    assert answer.finish() is None
