"""What holds for every eviction policy, whatever it prefers."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_loader.policy.interface import Event, Policy, key_of
from mtp_loader.policy.registry import CLAIRVOYANT, NAMES, make_policy
from support.traces import made_up_events

EVERY = (*NAMES, CLAIRVOYANT)

operations = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.integers(0, 3), st.sets(st.integers(0, 15), min_size=1, max_size=4)),
        st.tuples(st.just("insert"), st.integers(0, 3), st.sets(st.integers(0, 15), min_size=1, max_size=4)),
        st.tuples(st.just("remove"), st.integers(0, 3), st.sets(st.integers(0, 15), min_size=1, max_size=4)),
    ),
    max_size=30,
)


def applied(name: str, script: list[tuple[str, int, set[int]]]) -> Iterator[tuple[Policy, set[int]]]:
    """The policy and the candidates it must know after each step."""
    events = [Event(y, tuple(sorted(key_of(y, e) for e in chosen))) for kind, y, chosen in script if kind == "event"]
    policy = make_policy(name, events)
    candidates: set[int] = set()
    for kind, layer, chosen in script:
        keys = sorted(key_of(layer, e) for e in chosen)
        if kind == "event":
            policy.record(Event(layer, tuple(keys)))
        for key in keys:
            if kind == "insert":
                policy.insert(key)
                candidates.add(key)
            elif kind == "remove":
                policy.remove(key)
                candidates.discard(key)
        yield policy, candidates


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15, deadline=None)
@given(script=operations, n=st.integers(0, 8), barred=st.sets(st.integers(0, 63), max_size=12))
def test_victims_are_distinct_candidates_outside_the_protected(
    name: str, script: list[tuple[str, int, set[int]]], n: int, barred: set[int]
) -> None:
    """A victim that is protected, gone or named twice frees a slot that is in use; too few leave a demand waiting."""
    protected = {key_of(i // 16, i % 16) for i in barred}
    for policy, candidates in applied(name, script):
        victims = policy.victims(n, protected)
        assert len(set(victims)) == len(victims)
        assert set(victims) <= candidates - protected
        assert len(victims) == min(n, len(candidates - protected))


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=10, deadline=None)
@given(script=operations, n=st.integers(1, 8))
def test_asking_changes_nothing(name: str, script: list[tuple[str, int, set[int]]], n: int) -> None:
    """The service may ask and not act: a twin that is never asked must answer the same at the end."""
    asked = list(applied(name, script))
    answers = []
    for policy, candidates in applied(name, script):
        policy.victims(n, ())
        policy.victims(1, candidates)
        answers.append(policy.victims(n, ()))
        assert policy.victims(n, ()) == answers[-1]
    if asked:
        assert asked[-1][0].victims(n, ()) == answers[-1]


@pytest.mark.parametrize("name", EVERY)
def test_the_best_victim_comes_first(name: str) -> None:
    """`victims(1)` is the head of `victims(n)`: the order is a ranking, not a set."""
    events = made_up_events(forwards=12, layers=4, experts=16, top_k=3, seed=1)
    policy = make_policy(name, events)
    for event in events:
        policy.record(event)
        for key in event.keys:
            policy.insert(key)
    assert policy.victims(6, ())[:1] == policy.victims(1, ())


@pytest.mark.parametrize("name", EVERY)
def test_an_insert_or_a_remove_told_twice_is_told_once(name: str) -> None:
    """A prefetch may race a demand for the same expert: its second insert must not make two candidates of one."""
    key = key_of(0, 1)
    policy = make_policy(name, [])
    policy.insert(key)
    policy.insert(key)
    policy.remove(key)
    policy.remove(key)
    assert policy.victims(2, ()) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_left_and_came_back_is_a_candidate_again(name: str) -> None:
    """Unpinning or withdrawing a recall inserts again: a policy that kept a stale mark would never give it up."""
    policy = make_policy(name)
    keys = [key_of(0, e) for e in range(4)]
    policy.record(Event(0, tuple(keys)))
    for key in keys:
        policy.insert(key)
    policy.remove(keys[2])
    policy.insert(keys[2])
    assert set(policy.victims(9, ())) == set(keys)


@pytest.mark.parametrize("name", NAMES)
def test_no_policy_is_zero_in_a_pool_smaller_than_a_tokens_demand(name: str) -> None:
    """The guard: with the same round asked again and again, half a round of slots must hit nearly half the time."""
    events = [Event(y, (key_of(y, 0), key_of(y, 1))) for _ in range(50) for y in range(8)]
    policy = make_policy(name)
    resident: set[int] = set()
    hits = 0
    for event in events:
        policy.record(event)
        missing = [key for key in event.keys if key not in resident]
        hits += len(event.keys) - len(missing)
        short = len(resident) + len(missing) - 8
        for victim in policy.victims(short, event.keys) if short > 0 else ():
            policy.remove(victim)
            resident.discard(victim)
        for key in missing:
            policy.insert(key)
            resident.add(key)
    assert hits / (50 * 16) > 0.35
