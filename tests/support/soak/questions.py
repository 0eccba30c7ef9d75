"""Prompts and their right answers, as JSON: `python -m support.soak.questions MODEL SEED CHUNK COUNT`.

Greedy answers are mlx-lm's own `generate_step`; seeded ones come from the project's own law on the same resident model,
plainly decoded: no pool, no process, no fault and no draft has a part in them.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
LENGTHS = (7, 33, 1, 65, 130, 2, 20, 64, 3, 48, 12, 300)
TOKENS = 64
DRAWN = {"temperature": 0.8, "top_p": 0.95, "seed": 11}
TEXT = (
    "In the beginning the soak was without form, and long. And it came to pass in those days, that he went out unto "
    "the people of the land, and said unto them, Hear ye this word; for the time is at hand. Then answered the men of "
    "the city, and the servants of the king rose up early in the morning, and they took of the fruit of the ground. "
)


@dataclass(frozen=True)
class Right:
    """One right answer: its ids, an end-of-text id included where there is one, and their text."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Question:
    """A prompt with what must come of it: greedily, and drawn as `DRAWN` says."""

    prompt: tuple[int, ...]
    greedy: Right
    seeded: Right


def compute(model: Path, seed: int, chunk: int, count: int) -> list[Question]:
    """In a process of its own, so that the resident model does not stay. Raises CalledProcessError."""
    command = [sys.executable, "-m", "support.soak.questions", str(model), str(seed), str(chunk), str(count)]
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout)
    return [Question(tuple(q["prompt"]), _right(q["greedy"]), _right(q["seeded"])) for q in found]


def _right(answer: dict[str, Any]) -> Right:
    return Right(tuple(answer["ids"]), answer["text"])


def _answers(model: Path, seed: int, chunk: int, count: int) -> list[Question]:
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    from mtp_daemon.bench.reference import load_resident
    from mtp_daemon.engine.decode.decoder import Decoder
    from mtp_daemon.engine.decode.settings import DecodeSettings
    from mtp_daemon.engine.decode.target import Target
    from mtp_daemon.engine.stream import ResidentStream
    from mtp_daemon.engine.text import load_vocabulary
    from mtp_daemon.engine.trunk import Trunk
    from mtp_protocol.sampling import Sampling

    mx.set_default_device(mx.cpu)
    resident, _tokenizer = load_resident(model)
    words = load_vocabulary(model, json.loads((model / "config.json").read_text()))
    target = Target(Trunk(resident), ResidentStream())

    def drawn(prompt: Sequence[int]) -> list[int]:
        settings = DecodeSettings(speculation="off", depth=0, chunk=chunk)
        decoder = Decoder(target, settings, prompt, Sampling(**DRAWN))  # type: ignore[arg-type]
        decoder.prefill(lambda done, total: None, lambda: False)
        ids: list[int] = []
        while len(ids) < TOKENS:
            ids += decoder.round(TOKENS - len(ids)).ids
        decoder.close()
        return ids

    questions = []
    for prompt in _prompts(words.encode(TEXT, raw=True, system=None), words.size, seed)[:count]:
        steps = generate_step(mx.array(prompt), resident, max_tokens=TOKENS, prefill_step_size=chunk)
        greedy = [int(token) for token, _ in steps]
        rights = [_until_end(ids, words.eos, words.decode) for ids in (greedy, drawn(prompt))]
        questions.append(Question(prompt, *rights))
    return questions


def _prompts(text: Sequence[int], vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    """Of every length, in turns a piece of text and noise."""
    rng = random.Random(seed)
    prompts = []
    for number, length in enumerate(LENGTHS):
        start = rng.randrange(len(text))
        piece = [text[(start + i) % len(text)] for i in range(length)]
        noise = [rng.randrange(1, vocabulary) for _ in range(length)]
        prompts.append(tuple(piece if number % 2 else noise))
    return prompts


def _until_end(ids: list[int], eos: frozenset[int], decode: Callable[[Sequence[int]], str]) -> Right:
    end = next((i for i, token in enumerate(ids) if token in eos), None)
    if end is None:
        return Right(tuple(ids), decode(ids))
    return Right(tuple(ids[: end + 1]), decode(ids[:end]))


if __name__ == "__main__":
    directory, *numbers = sys.argv[1:]
    print(json.dumps([asdict(q) for q in _answers(Path(directory), *(int(n) for n in numbers))]))
