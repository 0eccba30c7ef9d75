"""A machine whose rounds cost what is stated: the controller under test is pure, so virtual time is enough."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from mtp_daemon.engine.depth import DepthController, RoundTimes

LAYERS, TOP_K = 48, 10
UNION = 0.72  # the union of S positions' experts is about top_k * S ** 0.72


@dataclass
class Machine:
    """Verify of S positions: `verify(S)` seconds; each miss `disk_s`; a draft step `draft_s` and its own misses."""

    verify: Callable[[int], float]
    disk_s: float
    acceptance: float
    hit_rate: float = 0.8
    draft_s: float = 0.02
    jitter: float = 0.03
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def requests(self, depth: int) -> int:
        return round(LAYERS * TOP_K * (depth + 1) ** UNION) + depth * TOP_K

    def expected_tokens_per_s(self, depths: Iterable[int]) -> float:
        """Of rounds of these depths, chance taken out: what the choice of depths is worth, not its luck."""
        tokens, seconds = 0.0, 0.0
        for depth in depths:
            tokens += sum(self.acceptance**i for i in range(depth + 1))
            stall_s = self.requests(depth) * (1.0 - self.hit_rate) * self.disk_s
            seconds += self.draft_s * depth + self.verify(depth + 1) + stall_s
        return tokens / seconds

    def round(self, depth: int) -> RoundTimes:
        accepted = 0
        while accepted < depth and self.random.random() < self.acceptance:
            accepted += 1
        requests = self.requests(depth)
        misses = int(self.random.binomial(requests, 1.0 - self.hit_rate))
        noise = 1.0 + self.jitter * float(self.random.standard_normal())
        return RoundTimes(
            drafted=depth,
            accepted=accepted,
            draft_s=self.draft_s * depth * noise,
            verify_s=self.verify(depth + 1) * noise,
            stall_s=misses * self.disk_s,
            requests=requests,
            misses=misses,
        )


@dataclass(frozen=True)
class Answer:
    rounds: tuple[RoundTimes, ...]

    def depths(self, first: int = 0, last: int | None = None) -> list[int]:
        return [r.drafted for r in self.rounds[first:last]]


def decode(controller: DepthController, machine: Machine, rounds: int, limit: int = 32) -> Answer:
    done: list[RoundTimes] = []
    for _ in range(rounds):
        done.append(machine.round(controller.choose(limit)))
        controller.observe(done[-1])
    return Answer(tuple(done))
