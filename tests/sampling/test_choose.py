"""One request's choices: drafts, verdicts and what may not depend on them. The model is a table: context -> logits."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_daemon.engine.sampling import Chooser, Draft, Verdict, chain
from mtp_protocol.sampling import Sampling
from support.exact_law import chi_square_p, exact_law

V = 12
PROMPT = [3, 1, 4, 1, 5]


def table(context: Sequence[int], which: int = 0) -> np.ndarray:
    """The target's logits (which=0) or the head's (1) after `context`: any fixed function of its end will do."""
    random = np.random.default_rng([which * 7, *context[-2:]])
    target = np.random.default_rng([0, *context[-2:]]).normal(0, 1.5, V)
    return (target + which * random.normal(0, 0.8, V)).astype(np.float32)


def decode(sampling: Sampling, depths: Sequence[int], count: int, fresh_seed: int = 1) -> tuple[list[int], int]:
    """`count` tokens by draft and verify, depths in turn; and how many drafts were accepted."""
    chooser = Chooser(sampling, fresh_seed)
    committed, accepted, round_ = list(PROMPT), 0, 0
    while len(committed) < len(PROMPT) + count:
        depth = depths[round_ % len(depths)]
        path: list[int] = []
        laws: list[mx.array | None] = []
        for _ in range(depth):
            proposal = chooser.propose(mx.array(table(committed + path, 1)[None]), committed, [path])
            path.append(int(proposal.tokens.item()))
            laws.append(None if proposal.law is None else proposal.law[0])
        logits = mx.array(np.stack([table(committed + path[:i]) for i in range(depth + 1)]))
        verdict = chooser.judge(logits, committed, chain(path, laws))
        committed += verdict.ids
        accepted += verdict.accepted
        round_ += 1
    return committed[len(PROMPT) :][:count], accepted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.6, "frequency_penalty": 0.4, "logit_bias": {2: 1.0}},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.8, "seed": 6, "top_k": 6, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_the_text_does_not_depend_on_speculation(options: dict[str, Any]) -> None:
    """Greedy and seeded: any depths give the ids of plain decoding; noise keyed by round would not.

    A penalty whose history lacked the drafts before a row would differ from the second accepted draft on.
    """
    sampling = Sampling(**options)
    plain, _ = decode(sampling, [0], 48)
    for depths in ([1], [3], [2, 0, 4, 1]):
        ids, accepted = decode(sampling, depths, 48)
        assert ids == plain
        assert accepted > 0, "a test without accepted drafts would show nothing"


def test_a_seed_is_repeated_and_another_seed_differs() -> None:
    first, _ = decode(Sampling(temperature=1.0, seed=1), [2], 32)
    again, _ = decode(Sampling(temperature=1.0, seed=1), [2], 32)
    other, _ = decode(Sampling(temperature=1.0, seed=2), [2], 32)
    assert first == again != other


def test_a_restart_goes_on_as_if_nothing_had_happened() -> None:
    """Seeded: a new engine that is given the delivered tokens draws the rest of the same text."""
    sampling = Sampling(temperature=1.0, seed=9)
    whole, _ = decode(sampling, [2], 24)
    chooser = Chooser(sampling)
    committed = PROMPT + whole[:10]
    for _ in range(14):
        committed += chooser.judge(mx.array(table(committed)[None]), committed).ids
    assert committed[len(PROMPT) :] == whole


def test_unseeded_rounds_commit_the_targets_law() -> None:
    """Depth 1 through the whole chooser, 500 answers: the second token's law, be it bonus or next round's.

    `test_exactness` has 100,000 draws of the same in one batch; here the rows and laws must also be the right ones.
    """
    sampling = Sampling(temperature=1.0, repetition_penalty=1.4, top_k=5)
    second = np.zeros(V)
    first = exact_law(table(PROMPT).tolist(), PROMPT, sampling)
    for token in range(V):
        context = [*PROMPT, token]
        second += first[token] * exact_law(table(context).tolist(), context, sampling)
    chooser = Chooser(sampling, fresh_seed=4)
    counts = np.zeros(V, dtype=np.int64)
    for _ in range(500):
        committed = list(PROMPT)
        while len(committed) < len(PROMPT) + 2:
            proposal = chooser.propose(mx.array(table(committed, 1)[None]), committed)
            draft = int(proposal.tokens.item())
            assert proposal.law is not None
            logits = mx.array(np.stack([table(committed), table([*committed, draft])]))
            committed += chooser.judge(logits, committed, chain([draft], [proposal.law[0]])).ids
        counts[committed[len(PROMPT) + 1]] += 1
    assert chi_square_p(counts, second) > 1e-4


def spiked(*tokens: int) -> mx.array:
    """Rows whose argmax is known."""
    return mx.array(np.eye(V, dtype=np.float32)[list(tokens)] * 5)


def test_the_walk_follows_the_branch_that_is_right() -> None:
    """tree: two drafts of the root, each with one of its own; the second branch is the true one."""
    drafts = [Draft(1, 0, 1), Draft(2, 0, 2), Draft(3, 1, 3), Draft(4, 2, 4)]
    verdict = Chooser(Sampling()).judge(spiked(2, 9, 4, 9, 6), PROMPT, drafts)
    assert verdict == Verdict(ids=(2, 4, 6), rows=(0, 2, 4), matched=(1, 3, None))


def test_a_branch_in_reserve_is_named() -> None:
    """rescue: the chain is wrong at once, and the second candidate, not fed, is the true token."""
    verdict = Chooser(Sampling()).judge(spiked(7, 1), PROMPT, [Draft(1, 0, 1), Draft(7, 0, None)])
    assert verdict == Verdict(ids=(7,), rows=(0,), matched=(1,))
    assert verdict.accepted == 0


def test_candidates_are_distinct_and_best_first() -> None:
    logits = mx.array([[0.0, 3.0, 1.0, 2.0]])
    assert Chooser(Sampling()).propose(logits, PROMPT, count=3).tokens.tolist() == [[1, 3, 2]]
    for seed in (3, None):
        drawn = Chooser(Sampling(temperature=2.0, seed=seed), 1).propose(logits, PROMPT, count=4).tokens.tolist()[0]
        assert sorted(drawn) == [0, 1, 2, 3]


def test_the_first_draft_has_the_noise_of_the_target() -> None:
    """Seeded, with a head that is the target: every draft is right. Other noise would make most of them wrong."""
    chooser = Chooser(Sampling(temperature=2.0, seed=3))
    for at in range(40):
        committed = PROMPT + [at % V] * at
        logits = mx.array(table(committed)[None])
        draft = int(chooser.propose(logits, committed).tokens.item())
        assert chooser.judge(logits, committed).ids == (draft,)


def test_logprobs_are_those_of_the_law_the_token_was_drawn_from() -> None:
    sampling = Sampling(temperature=0.7, top_k=4, repetition_penalty=1.3, logprobs=6, seed=2)
    verdict = Chooser(sampling).judge(mx.array(table(PROMPT)[None]), PROMPT)
    exact = exact_law(table(PROMPT).tolist(), PROMPT, sampling)
    (entry,) = verdict.logprobs
    assert entry.token == verdict.ids[0]
    assert entry.logprob == pytest.approx(np.log(exact[entry.token]), abs=1e-4)
    assert [token for token, _ in entry.top] == np.argsort(-exact)[:4].tolist(), "four tokens have a finite one"
    assert [value for _, value in entry.top] == pytest.approx(np.log(np.sort(exact)[::-1][:4]).tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "drafts", [[Draft(1, 0, 1), Draft(2, 0, 1)], [Draft(1, 3, 1)], [Draft(1, 0, None)], []], ids=str
)
def test_drafts_that_do_not_lead_to_every_row_are_our_bug(drafts: list[Draft]) -> None:
    with pytest.raises(ValueError, match="row"):
        Chooser(Sampling()).judge(spiked(0, 1), PROMPT, drafts)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_tree_of_drafts_yields_the_plain_greedy_run(data: st.DataObject) -> None:
    """Whatever is drafted, in whatever tree, the committed run is the head of plain decoding's."""
    plain, _ = decode(Sampling(), [0], 8)
    rows: list[list[int]] = [[]]
    drafts: list[Draft] = []
    for _ in range(data.draw(st.integers(0, 6))):
        parent = data.draw(st.integers(0, len(rows) - 1))
        right = plain[len(rows[parent])]
        token = data.draw(st.sampled_from([right, right, (right + 1) % V]))
        drafts.append(Draft(token, parent, len(rows)))
        rows.append([*rows[parent], token])
    logits = mx.array(np.stack([table(PROMPT + row) for row in rows]))
    verdict = Chooser(Sampling()).judge(logits, PROMPT, drafts)
    assert list(verdict.ids) == plain[: len(verdict.ids)]
    assert [rows[row] for row in verdict.rows] == [plain[:i] for i in range(len(verdict.ids))]
