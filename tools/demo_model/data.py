"""The text: chapters of the King James Bible, a held-out part, a tokenizer, batches."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "<|endoftext|>"
HELD_OUT_EVERY = 20  # chapters 20, 40, 60, ... are never trained on: 5 % spread over all books
_HEADING = re.compile(r"^((?:[1-3] )?[A-Z][A-Za-z ]*) (\d+)$")
_VERSE = re.compile(r"^ +(\d+) (.*)$")


def read_dump(path: Path | None) -> str:
    """The text as Debian's ``bible`` program prints it: from a file, or from the program.

    Raises FileNotFoundError when neither is there (packages bible-kjv and bible-kjv-text).
    """
    if path is not None:
        return path.read_text(encoding="ascii")
    program = shutil.which("bible")
    if program is None:
        raise FileNotFoundError("no `bible` program: install Debian's bible-kjv and bible-kjv-text, or pass --text")
    command = [program, "-l200000", "Gen1:1-Rev22:21"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def chapters(dump: str) -> list[str]:
    """One string a chapter: its heading, an empty line, a line ``number text`` for each verse."""
    found: list[list[str]] = []
    for line in dump.splitlines():
        if verse := _VERSE.match(line):
            found[-1].append(f"{verse[1]} {verse[2].strip()}")
        elif heading := _HEADING.match(line):
            found.append([f"{heading[1]} {heading[2]}", ""])
    return ["\n".join(lines) + "\n" for lines in found]


def split(all_chapters: list[str]) -> tuple[list[str], list[str]]:
    """(train, held out): every 20th chapter is held out."""
    held = all_chapters[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    train = [c for i, c in enumerate(all_chapters) if (i + 1) % HELD_OUT_EVERY]
    return train, held


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """A byte-level BPE of exactly ``vocab`` entries; id 0 ends a chapter, any byte encodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {vocab}")
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[torch.Tensor]:
    """One int64 tensor a text, with the end-of-text id before and after it."""
    eos = tokenizer.token_to_id(EOS)
    return [torch.tensor([eos, *e.ids, eos]) for e in tokenizer.encode_batch(texts)]


def stream(encoded: list[torch.Tensor]) -> torch.Tensor:
    """All texts one after the other, a single end-of-text id between two of them."""
    return torch.cat([encoded[0][:1], *(ids[1:] for ids in encoded)])


def batches(ids: torch.Tensor, rows: int, length: int, extra: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless batches [rows, length + extra]; the text is cut anew in each pass.

    ``extra`` tokens past ``length`` serve as targets of the model (1) and of the head (2).
    A pass starts at a random phase, so that block borders differ from pass to pass.
    """
    rng = torch.Generator().manual_seed(seed)
    while True:
        phase = int(torch.randint(length, (1,), generator=rng))
        starts = torch.arange(phase, len(ids) - length - extra, length)
        starts = starts[torch.randperm(len(starts), generator=rng)]
        for group in starts[: len(starts) // rows * rows].view(-1, rows):
            yield torch.stack([ids[s : s + length + extra] for s in group.tolist()])
