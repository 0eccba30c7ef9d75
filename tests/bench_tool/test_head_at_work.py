"""Speculation's figures show it when the head is not the model's: nothing is accepted, and the text stays the same."""

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_loader.store.resolve import resolve_model
from support.decoding import decoder
from support.resident import resident_target

PROMPT, TOKENS = list(range(1, 17)), 40


@pytest.fixture(scope="module")
def target() -> Target:
    return resident_target(resolve_model("demo"))


def _decode(on: Target, depth: int) -> tuple[list[int], float]:
    """Tokens, and the share of first drafts that were right."""
    decoding = decoder(on, PROMPT, depth=depth)
    ids: list[int] = []
    while len(ids) < TOKENS:
        ids += decoding.round(TOKENS - len(ids)).ids
    acceptance = decoding.stats()["acceptance_by_position"]
    decoding.close()
    return ids, acceptance[0] if acceptance else 0.0


def _shuffle(head: MtpHead) -> None:
    """Every matrix's rows in another order; the numbers stay those of a trained head."""
    mx.random.seed(5)
    shuffled = [(name, a[mx.random.permutation(a.shape[0])]) for name, a in tree_flatten(head.parameters())]
    head.update(tree_unflatten(shuffled))
    mx.eval(head.parameters())


def test_a_shuffled_head_is_right_about_never_and_the_tokens_stay(target: Target) -> None:
    assert target.head is not None
    plain, _ = _decode(target, 0)
    drafted, acceptance = _decode(target, 2)
    assert drafted == plain and acceptance > 0.4, "the head as it was trained"
    _shuffle(target.head)
    drafted, acceptance = _decode(target, 2)
    assert drafted == plain and acceptance < 0.1
