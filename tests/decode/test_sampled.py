"""Sampled requests through whole rounds: a seed's text is one text; penalties and log probabilities stay exact."""

from collections import Counter
from typing import Any

import pytest

from mtp_daemon.engine.decode.decoder import Decoder
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.draft.interface import Candidates, DraftSource
from mtp_daemon.engine.sampling import Chooser
from mtp_protocol.sampling import Sampling
from support.decoding import Scripted, assert_like_fresh, decoder, prompt_of, right_then_wrong, run, scripted, target

SETTINGS = {
    "plain": {"temperature": 1.0},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    "penalised": {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "greedy_penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "biased": {"temperature": 1.0, "logit_bias": {3: 4.0, 7: -5.0}},
}


CASES = [
    pytest.param(kind, way, marks=[] if way == "chain" or kind == "plain" else pytest.mark.full)
    for kind in SETTINGS
    for way in ("chain", "adaptive", "rescue", "tree")
]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_seeds_text_is_one_text(kind: str, way: str) -> None:
    """With a seed the text is the same whatever is drafted, log probabilities too; another seed's differs."""
    on, prompt = target("qwen3_next", head=True), prompt_of(9)

    def text(seed: int, **settings: Any) -> tuple[list[int], list[Any]]:
        decoding = decoder(on, prompt, sampling=Sampling(seed=seed, logprobs=2, **SETTINGS[kind]), **settings)  # type: ignore[arg-type]
        ids, logprobs = [], []
        while len(ids) < 14:
            got = decoding.round(14 - len(ids))
            assert len(got.logprobs) == len(got.ids)
            ids += got.ids
            logprobs += got.logprobs
        return ids, logprobs

    alone = text(5, depth=0)
    assert text(5, depth=0) == alone
    assert text(5, depth=3, speculation=way, tau=0.005) == alone
    if not kind.startswith("greedy"):
        assert text(6, depth=0)[0] != alone[0]


@pytest.mark.parametrize("way", ["chain", "rescue", "tree"])
def test_accepted_drafts_of_a_seed(way: str) -> None:
    """The same where drafts are accepted: a scripted drafter that knows the seed's text."""
    on, prompt, sampling = target("qwen3_next"), prompt_of(9), Sampling(temperature=1.0, seed=11)
    answer = run(decoder(on, prompt, sampling=sampling, depth=0), 20)
    drafter = Scripted(answer, len(prompt), right_then_wrong(2), way)
    decoding = decoder(on, prompt, sampling=sampling, drafter=drafter, depth=4)
    assert run(decoding, 20, assert_like_fresh) == answer
    assert decoding.stats()["accepted"] >= 8


def test_a_seed_survives_a_restart() -> None:
    """A restart in the middle goes on with the seed's text: the noise is keyed by position."""
    on, prompt, sampling = target("qwen3_next", head=True), prompt_of(9), Sampling(temperature=1.0, seed=11)
    answer = run(decoder(on, prompt, sampling=sampling, depth=2), 20)
    rest = decoder(on, prompt, sampling=sampling, delivered=answer[:8], depth=3, speculation="tree")
    assert run(rest, 12) == answer[8:]


class _Fixed:
    """Offers the same paths in every round, drawn from a point law: rejection sampling must correct for all of it."""

    def __init__(self, *paths: tuple[int, ...], together: bool) -> None:
        self._candidates = lambda: scripted(*paths, together=together)

    def draft(self, source: DraftSource, depth: int) -> Candidates | None:
        return self._candidates() if depth == 2 else None


@pytest.mark.full
@pytest.mark.parametrize("together", [False, True])
def test_the_law_of_unseeded_rounds_is_the_targets(together: bool) -> None:
    """Whole rounds of rejection sampling, branches and rows side by side included, against plain draws: chi-square
    over the first two tokens. A draft tried under the wrong parent, or a branch counted twice, shifts the law.
    """
    on, prompt = target("qwen3_next"), prompt_of(6)
    sampling = Sampling(temperature=0.2, top_k=3)
    plain = _pairs(on, prompt, sampling, None, 240)
    likely = [pair for pair, _ in plain.most_common(2)]
    paths = [likely[0], likely[1]] if likely[0][0] != likely[1][0] else [likely[0], (likely[0][0], likely[1][1])]
    drafted = _pairs(on, prompt, sampling, _Fixed(*paths, together=together), 240)
    assert _chi_square(plain, drafted) < 30, (plain, drafted)


def _pairs(on: Target, prompt: list[int], sampling: Sampling, drafter: Any, draws: int) -> Counter[tuple[int, ...]]:
    counted: Counter[tuple[int, ...]] = Counter()
    for draw in range(draws):
        seed = draw + (0 if drafter is None else 10_000)
        settings = DecodeSettings(depth=0 if drafter is None else 2)
        decoding = Decoder(on, settings, prompt, sampling, drafter=drafter, chooser=Chooser(sampling, seed))
        decoding.prefill(lambda done, total: None, lambda: False)
        counted[tuple(run(decoding, 3)[:2])] += 1
    return counted


def _chi_square(a: Counter[tuple[int, ...]], b: Counter[tuple[int, ...]]) -> float:
    """Two samples' homogeneity, rare outcomes together: 9 outcomes at most, so 8 degrees of freedom (0.9998: 30)."""
    common = {k for k in a | b if a[k] + b[k] >= 10}
    rows = [(a[k], b[k]) for k in common]
    rows.append((sum(v for k, v in a.items() if k not in common), sum(v for k, v in b.items() if k not in common)))
    return sum((x - y) ** 2 / (x + y) for x, y in rows if x + y)
