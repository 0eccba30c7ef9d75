"""A setting outside its range is refused by name before anything is queued."""

from typing import Any

import pytest

from mtp_protocol.sampling import Sampling

WRONG: list[dict[str, Any]] = [
    {"temperature": -0.1},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"top_k": -1},
    {"min_p": 1.5},
    {"repetition_penalty": 0.0},
    {"presence_penalty": 1e9},
    {"frequency_penalty": float("nan")},
    {"logprobs": 21},
    {"seed": -1},
    {"seed": 2**63},
    {"logit_bias": {-1: 0.0}},
    {"logit_bias": {1: float("nan")}},
    {"logit_bias": dict.fromkeys(range(1025), 0.0)},
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda f: str(f)[:40])
def test_a_value_out_of_range_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        Sampling(**fields)


def test_the_default_is_greedy() -> None:
    assert Sampling().greedy and not Sampling(temperature=0.5).greedy
