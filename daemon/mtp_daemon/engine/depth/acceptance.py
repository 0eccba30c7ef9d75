"""How often the draft at each position is right, given that those before it were."""


class Acceptance:
    """Decayed counts by position, shrunk towards what the position before it suggests."""

    PRIOR_TRIALS = 4.0
    FADE = 0.97  # a chained draft is a little worse at each further position, until seen otherwise

    def __init__(self, maximum: int, first: float, half_life: float) -> None:
        self._first = first
        self._keep = 0.5 ** (1.0 / half_life)
        self._trials = [0.0] * maximum
        self._right = [0.0] * maximum

    def observe(self, drafted: int, accepted: int) -> None:
        for position in range(min(drafted, accepted + 1, len(self._trials))):
            self._trials[position] = self._trials[position] * self._keep + 1.0
            self._right[position] = self._right[position] * self._keep + (1.0 if position < accepted else 0.0)

    def by_position(self, depth: int) -> list[float]:
        """The probability that draft i is right given that 1..i-1 were, for i = 1..depth."""
        rates: list[float] = []
        prior = self._first
        for trials, right in zip(self._trials[:depth], self._right[:depth], strict=True):
            rates.append((right + self.PRIOR_TRIALS * prior) / (trials + self.PRIOR_TRIALS))
            prior = rates[-1] * self.FADE
        return rates

    def committed(self, depth: int) -> float:
        """Tokens that a round of this depth is expected to commit: the run of right drafts and one more."""
        total, run = 1.0, 1.0
        for rate in self.by_position(depth):
            run *= rate
            total += run
        return total
