"""The cost controller on a machine of stated costs: it must find, without being told, what the best depth is."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mtp_daemon.engine.depth import DepthSettings, make_controller
from support.cost_shim import LAYERS, TOP_K, Answer, Machine, decode

# A GPU's forward: nearly the same for 1 and 4 positions.
GPU = Machine(verify=lambda s: 1.0 + 0.05 * (s - 1), disk_s=0.0, acceptance=0.0)
# MLX's CPU kernels work row by row: 1.7, 2.6, 3.4 forwards of one (measured).
CPU = Machine(verify=lambda s: {1: 1.0, 2: 1.7, 3: 2.6, 4: 3.4, 5: 4.2}[s], disk_s=0.0, acceptance=0.7, draft_s=0.15)
MISSES_PER_TOKEN = LAYERS * TOP_K * (1.0 - GPU.hit_rate)
SETTLED = 32


def seeded(machine: Machine, seed: int, **changes: float) -> Machine:
    return replace(machine, random=np.random.default_rng(seed), **changes)


def best_constant(machine: Machine) -> float:
    return max(machine.expected_tokens_per_s([depth]) for depth in range(5))


@pytest.mark.parametrize("disk", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("acceptance", [0.8, 0.5, 0.1])
def test_it_lands_within_five_per_cent_of_the_best_constant_depth(acceptance: float, disk: float) -> None:
    """Drafting that does not pay on a slow disk is left off, and drafting that pays is not missed."""
    machine = replace(GPU, acceptance=acceptance, disk_s=disk / MISSES_PER_TOKEN)
    best = best_constant(machine)
    answers = [decode(make_controller(DepthSettings()), seeded(machine, 10 + s), 400) for s in range(4)]
    reached = [machine.expected_tokens_per_s(answer.depths(SETTLED)) / best for answer in answers]
    assert np.mean(reached) >= 0.95
    assert min(reached) >= 0.92


@pytest.mark.parametrize("acceptance", [0.67, 0.5, 0.1])
def test_where_a_position_costs_a_forward_it_settles_at_depth_0_within_32_rounds(acceptance: float) -> None:
    """The CPU backend: speculation cannot win, and finding that out must not cost the answer (< 3 %)."""
    for seed in range(4):
        machine = seeded(CPU, seed, acceptance=acceptance)
        answer = decode(make_controller(DepthSettings()), machine, 600)
        assert Counter(answer.depths(SETTLED - 8, SETTLED))[0] >= 7
        assert (
            machine.expected_tokens_per_s(answer.depths(SETTLED)) > 0.97
        )  # plain decoding is 1 token a second on this machine


def settled_depth(answer: Answer, first: int, last: int) -> int:
    return Counter(answer.depths(first, last)).most_common(1)[0][0]


def phases(machines: list[Machine], rounds: int) -> Answer:
    controller = make_controller(DepthSettings())
    return Answer(tuple(r for m in machines for r in decode(controller, m, rounds).rounds))


def test_it_follows_acceptance_that_changes_in_mid_answer() -> None:
    """Turned off when the text turns hard, and re-armed by its probes when drafting pays again."""
    disk_s = 1.0 / MISSES_PER_TOKEN
    hard, easy = 0.05, 0.9
    answer = phases([seeded(GPU, i, acceptance=a, disk_s=disk_s) for i, a in enumerate((easy, hard, easy))], 250)
    assert settled_depth(answer, 100, 250) >= 2
    assert settled_depth(answer, 350, 500) == 0
    assert settled_depth(answer, 600, 750) >= 2


def test_it_follows_a_hit_rate_that_changes_in_mid_answer() -> None:
    """The same text, but the pool no longer holds it: misses of every further position decide."""
    reached = []
    for seed in range(3):
        warm = seeded(GPU, seed, acceptance=0.55, disk_s=4.0 / MISSES_PER_TOKEN, hit_rate=0.995)
        cold = replace(warm, hit_rate=0.5)
        answer = phases([warm, cold, warm], 250)
        for machine, first in ((warm, 100), (cold, 350), (warm, 600)):
            rate = machine.expected_tokens_per_s(answer.depths(first, first + 150))
            reached.append(rate / best_constant(machine))
    assert np.mean(reached) >= 0.95
    assert min(reached) >= 0.9


def test_reads_once_settled_are_near_those_of_no_drafting() -> None:
    """Bytes read <= 1.1x of no drafting, a committed token, where drafting is rightly off."""
    machine = replace(GPU, acceptance=0.1, disk_s=4.0 / MISSES_PER_TOKEN)
    answer = decode(make_controller(DepthSettings()), seeded(machine, 3), 600)
    rounds = answer.rounds[SETTLED:]
    misses_per_token = sum(r.misses for r in rounds) / sum(r.accepted + 1 for r in rounds)
    assert misses_per_token <= 1.1 * MISSES_PER_TOKEN


def test_the_next_request_starts_with_what_the_machine_costs() -> None:
    """A short answer must not pay for finding out again that drafting does not pay here."""
    machine = replace(CPU, acceptance=0.3)
    controller = make_controller(DepthSettings())
    fresh = decode(controller, seeded(machine, 1), 100)
    following = decode(controller.successor(), seeded(machine, 2), 20)
    assert machine.expected_tokens_per_s(following.depths()) > 0.97
    assert machine.expected_tokens_per_s(fresh.depths(0, 20)) < 0.97


def test_an_outlier_does_not_decide() -> None:
    """The first forward of a shape compiles kernels: 30x slow once, and drafting still pays."""
    controller = make_controller(DepthSettings())
    machine = seeded(GPU, 5, acceptance=0.8)
    seen: set[int] = set()
    for _ in range(60):
        done = machine.round(controller.choose(32))
        slow = 1.0 if done.drafted in seen else 30.0
        seen.add(done.drafted)
        controller.observe(replace(done, verify_s=done.verify_s * slow))
    assert settled_depth(decode(controller, machine, 60), 0, 60) >= 2


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_no_depth_is_beyond_the_limit(limit: int) -> None:
    """The answer's last tokens leave room for fewer drafts."""
    answer = decode(make_controller(DepthSettings()), seeded(GPU, 6, acceptance=0.9), 200, limit=limit)
    assert max(answer.depths()) <= limit
