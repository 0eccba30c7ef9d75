"""Who asks what and when: an open loop, in which nobody waits for an answer before asking again. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """A request of `client`, due `at_s` after the start."""

    at_s: float
    client: int
    prompt_tokens: int


def poisson(rate: float, requests: int, clients: int, prompt_tokens: Sequence[int], seed: int) -> list[Arrival]:
    """`requests` arrivals at `rate` a second in all, exponential gaps between them; clients and lengths at random.

    The same arguments give the same arrivals.
    """
    draw = random.Random(seed)
    at_s = 0.0
    arrivals = []
    for _ in range(requests):
        at_s += draw.expovariate(rate)
        arrivals.append(Arrival(at_s, draw.randrange(clients), draw.choice(prompt_tokens)))
    return arrivals
