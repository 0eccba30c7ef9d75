"""The depth with the most committed tokens a second, from measured acceptance, compute and stall."""

from mtp_daemon.engine.depth.acceptance import Acceptance
from mtp_daemon.engine.depth.curve import Curve
from mtp_daemon.engine.depth.interface import RoundTimes

# The experts of 2, 3, 4 positions are 1.6-1.8, 2.2-2.3, 2.6 times those of one: about 0.6 more for each. Misses grow
# at least so, until measured: what is resident is a share of the union.
UNION_RISE = 0.6
VERIFY_RISE = 0.3
DRAFT_RISE = 1.0


class Costs:
    """What rounds take, by depth: holds for the machine and the model, whatever the text."""

    def __init__(self, half_life: float) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self.verify = Curve(VERIFY_RISE, 4 * half_life)
        self._draft = Curve(DRAFT_RISE, 4 * half_life)
        self._requests = Curve(UNION_RISE, 4 * half_life)
        self._misses = Curve(UNION_RISE, half_life)
        self._stall_s = 0.0
        self._stall_misses = 0.0

    def observe(self, round_: RoundTimes) -> None:
        self.verify.observe(round_.drafted, round_.verify_s)
        # Depth 0 does not draft; what it spends to keep the head aligned lies on the same line.
        self._draft.observe(round_.drafted, round_.draft_s)
        self._requests.observe(round_.drafted, float(round_.requests))
        self._misses.observe(round_.drafted, float(round_.misses))
        self._stall_s = self._stall_s * self._keep + round_.stall_s
        self._stall_misses = self._stall_misses * self._keep + round_.misses

    def misses(self, depth: int) -> float:
        """Expected misses of a round: measured ones, but never more than the union it asks for."""
        return min(self._misses.at(depth), self._requests.at(depth))

    def total_s(self, depth: int) -> float:
        stall = self.misses(depth) * self._stall_s / self._stall_misses if self._stall_misses > 0 else 0.0
        return self._draft.at(depth) + self.verify.at(depth) + stall


class CostController:
    """Maximises expected committed tokens over draft + verify + stall time; depth 0 is the floor.

    It learns the cost of a depth only by going there. The first rounds visit a few; after that a share of the time,
    `probe_share`, is credit for probes: one is made when its expected loss is covered, and pays what it really lost,
    so that a depth that is nearly as good is tried often and a bad one rarely. That re-arms drafting after it was
    turned off. Every fourth probe goes to the depth that is known least, the others to the neighbours and to 0.
    """

    ANYWHERE = 4

    def __init__(
        self,
        initial: int,
        maximum: int,
        half_life: float,
        probe_share: float,
        acceptance: float,
        costs: Costs | None = None,
    ) -> None:
        self._initial, self._maximum = min(initial, maximum), maximum
        self._half_life, self._probe_share, self._prior = half_life, probe_share, acceptance
        self._acceptance = Acceptance(maximum, acceptance, half_life)
        self._plan: list[int] = []
        if costs is None:
            start = self._initial
            self._plan = [start, 0, start, 0, min(1, maximum), min(start + 1, maximum)]
        self._costs = costs if costs is not None else Costs(half_life)
        self._credit_s = 0.0
        self._probes = 0
        self._probing_at: float | None = None  # tokens a second given up for the probe now running

    def choose(self, limit: int) -> int:
        top = min(limit, self._maximum)
        self._probing_at = None
        if self._plan:
            return min(self._plan.pop(0), top)
        best = max(range(top + 1), key=self.rate)
        probe = self._probe(best, top)
        if probe is None:
            return best
        self._probing_at = self.rate(best)
        self._probes += 1
        return probe

    def rate(self, depth: int) -> float:
        """Expected committed tokens a second."""
        total_s = self._costs.total_s(depth)
        return self._acceptance.committed(depth) / total_s if total_s > 0 else 0.0

    def _probe(self, best: int, top: int) -> int | None:
        """The depth to try instead of `best`, if the credit covers what it is expected to lose."""
        near = {0, best - 1, best + 1}
        anywhere = self._probes % self.ANYWHERE == self.ANYWHERE - 1
        others = [d for d in range(top + 1) if d != best and (anywhere or d in near)]
        rate = self.rate(best)
        if not others or rate <= 0:
            return None
        depth = min(others, key=self._costs.verify.evidence)
        loss_s = self._costs.total_s(depth) - self._acceptance.committed(depth) / rate
        return depth if loss_s <= self._credit_s else None

    def observe(self, round_: RoundTimes) -> None:
        if self._probing_at is not None and self._probing_at > 0:
            lost_s = round_.total_s - (round_.accepted + 1) / self._probing_at
            # Unused credit is no reason to waste it all at once later: two plain rounds' worth is enough to keep.
            self._credit_s = min(self._credit_s - lost_s, 2 * self._costs.total_s(0))
        else:
            ceiling = max(self._credit_s, self._dearest_probe_s())
            self._credit_s = min(self._credit_s + self._probe_share * round_.total_s, ceiling)
        self._probing_at = None
        self._costs.observe(round_)
        self._acceptance.observe(round_.drafted, round_.accepted)

    def _dearest_probe_s(self) -> float:
        return max(self._costs.total_s(depth) for depth in range(self._maximum + 1))

    def successor(self) -> "CostController":
        first = self._acceptance.by_position(1)
        return CostController(
            self._initial,
            self._maximum,
            self._half_life,
            self._probe_share,
            (first[0] + self._prior) / 2 if first else self._prior,
            None if self._plan else self._costs,
        )
