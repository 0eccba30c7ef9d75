"""The predictor: what each source knows, how it is weighed, and that a true gate reads 100 %."""

import random
import sys

import pytest

from mtp_loader.policy.interface import Event, expert_of, key_of, layer_of
from mtp_loader.predict.blend import LayerShape, Predictor

LAYERS, EXPERTS, TOP_K = 4, 16, 2
Rows = list[tuple[int, tuple[int, ...]]]


def predictor() -> Predictor:
    return Predictor({y: LayerShape(EXPERTS, TOP_K) for y in range(LAYERS)})


def event(layer: int, experts: tuple[int, ...]) -> Event:
    return Event(layer, tuple(sorted(key_of(layer, e) for e in experts)))


def random_forward(rng: random.Random) -> Rows:
    return [(y, tuple(rng.sample(range(EXPERTS), TOP_K))) for y in range(LAYERS)]


def run(p: Predictor, rows: Rows, tokens: tuple[int, ...] = (), step: int = -1) -> dict[int, list[int]]:
    """One forward; what was wanted for each layer just before it ran."""
    p.on_start(tokens, step)
    wanted: dict[int, list[int]] = {}
    for layer, experts in rows:
        wanted[layer] = [expert_of(k) for k, _ in p.wanted(64) if layer_of(k) == layer]
        p.on_event(event(layer, experts))
    p.on_used(tokens or (0,), [(y, (e,)) for y, e in rows])
    return wanted


def recall(p: Predictor, layer: int, source: str) -> tuple[float, float]:
    meter = p.meters[layer][source]
    return meter.at_k / meter.wanted, meter.at_2k / meter.wanted


def test_the_true_gate_reads_a_hundred_percent() -> None:
    """The control: hints that are the truth must measure as 1, or the measure is wrong; a false source as near 0."""
    p, rng = predictor(), random.Random(1)
    for step in range(1, 30):
        rows = random_forward(rng)
        p.on_start((), step)
        for layer, experts in rows:
            p.wanted(64)
            p.on_event(event(layer, experts))
            if layer + 1 < LAYERS:
                p.on_hint(step, ((layer + 1, tuple((e, 0.9) for e in rows[layer + 1][1])),))
                assert {expert_of(k) for k, _ in p.wanted(2)} == set(rows[layer + 1][1])
    for layer in range(1, LAYERS):
        assert recall(p, layer, "hint1") == (1.0, 1.0)
        assert recall(p, layer, "blend") == (1.0, 1.0)


def test_hints_that_lie_lose_their_say() -> None:
    """Blended by how well each did lately: after lies, what the transitions know comes first again."""
    p = predictor()
    rows: Rows = [(y, (2 * y, 2 * y + 1)) for y in range(LAYERS)]
    for step in range(1, 60):
        p.on_start((), step)
        for layer, experts in rows:
            wanted = p.wanted(TOP_K)
            p.on_event(event(layer, experts))
            if layer + 1 < LAYERS:
                p.on_hint(step, ((layer + 1, ((14, 1.0), (15, 1.0))),))
        p.on_used((0,), [(y, (e,)) for y, e in rows])
    assert recall(p, 2, "hint1")[0] == 0.0
    assert p.meters[2]["hint1"].lately < 0.2 < p.meters[2]["transitions"].lately
    p.on_start((), 100)
    p.on_event(event(0, (0, 1)))
    p.on_hint(100, ((1, ((14, 1.0), (15, 1.0))),))
    wanted = p.wanted(TOP_K)
    assert {expert_of(k) for k, _ in wanted} == {2, 3}


def test_transitions_learn_what_follows_in_the_next_layer() -> None:
    p, rng = predictor(), random.Random(2)
    for _ in range(80):
        first = tuple(rng.sample(range(EXPERTS), TOP_K))
        run(p, [(y, tuple((e + y) % EXPERTS for e in first)) for y in range(LAYERS)])
    wanted = run(p, [(0, (3, 9)), (1, (4, 10)), (2, (5, 11)), (3, (6, 12))])
    assert set(wanted[2][:TOP_K]) == {5, 11}


def test_the_token_table_knows_the_first_layer() -> None:
    """Before any layer has run, only the token ids say anything; a table that mixes tokens up would miss."""
    p = predictor()
    for _ in range(3):
        for token in range(6):
            run(p, [(y, ((token + y) % EXPERTS, 10)) for y in range(LAYERS)], (token,))
    p.on_start((4,))
    assert {expert_of(k) for k, _ in p.wanted(TOP_K)} == {4, 10}


def test_what_is_skipped_is_not_wanted_and_the_budget_holds() -> None:
    p = predictor()
    for _ in range(5):
        run(p, [(y, (1, 2)) for y in range(LAYERS)])
    p.on_start(())
    everything = p.wanted(64)
    assert {layer_of(k) for k, _ in everything} == {0, 1}
    assert len(p.wanted(1)) == 1
    skip = {everything[0][0]}
    assert skip.isdisjoint(k for k, _ in p.wanted(64, skip))
    assert all(0.0 < chance <= 1.0 for _, chance in everything)


def test_a_large_forward_teaches_but_is_not_predicted() -> None:
    """A prompt's chunk needs nearly everything: predictions would only be in the way."""
    p = predictor()
    p.on_start(tuple(range(64)))
    assert p.wanted(64) == []
    p.on_used(tuple(range(64)), [(y, [(1, 2)] * 64) for y in range(LAYERS)])
    p.on_start((5,))
    assert {expert_of(k) for k, _ in p.wanted(TOP_K)} == {1, 2}


def test_layers_and_experts_that_are_not_the_models_are_ignored() -> None:
    p = predictor()
    p.on_event(Event(77, (key_of(77, 1),)))
    p.on_hint(1, ((77, ((1, 1.0),)), (1, ((99, 1.0), (3, 1.0)))))
    p.on_used((1,), [(77, ((1, 2),))])
    assert [expert_of(k) for k, _ in p.wanted(8) if layer_of(k) == 1] == [3]


def test_likely_ranks_by_use_over_long() -> None:
    p = predictor()
    for i in range(40):
        run(p, [(0, (1, 2 if i % 2 else 3)), (1, (5, 6))])
    assert p.likely(3, [0, 1]) == [key_of(0, 1), key_of(1, 5), key_of(1, 6)]
    assert p.likely(9, [1]) == [key_of(1, 5), key_of(1, 6)]


def test_the_token_table_has_its_size_from_the_start() -> None:
    """A loader that runs for weeks would else grow with the words that it meets."""
    p = predictor()
    size = sys.getsizeof(p.tokens.rows)
    for token in range(0, 4000, 4):
        p.on_used((token, token + 1, token + 2, token + 3), [(0, [(1, 2)] * 4)])
    assert sys.getsizeof(p.tokens.rows) == size


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_token_table_forgets_the_least_recently_fed(tokens: int) -> None:
    """Without a bound the table grows with the vocabulary."""
    p = predictor()
    for start in range(0, 4200, tokens):
        fed = tuple(range(start, start + tokens))
        p.on_used(fed, [(0, [(1, 2)] * tokens)])
    assert len(p.tokens.fed) == len(p.tokens.rows) == 4096
    assert 0 not in p.tokens.fed
    assert len(set(p.tokens.rows.values())) == 4096
