"""Whether prefetching pays: what it saved against what it cost, and how sure a prediction must be to be read."""

from dataclasses import dataclass

_FADE = 0.95  # a forward's worth of the past: about the last 20 forwards count
_WASTE_LIMIT = 0.4  # wrong reads for a right one: where published prefetching went from a gain to a loss
_START = 0.7  # precision asked for at first: rather too much, until it is known what claims are worth
_STEP = 0.01  # a forward; downwards a fifth of it, so that a spell of waste is not forgotten at once
_LOWEST, _HIGHEST = 0.35, 0.9  # 0.55 left a quarter of the demo model's coverage, and of the waste allowed, unused
_ENOUGH = 8.0  # reads judged lately, below which their waste says nothing
_LOSING_FORWARDS = 8  # in a row; of fewer, one slow read decides
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512  # forwards; a probe after each costs 8, so less than 2 % in the long run
_PROBE_FORWARDS = 8
_BUCKETS = 20  # of stated chances, 0.05 each: precision falls from 0.8 to 0.2 within four of them
_BUCKET_FADE = 0.995  # a guess's weight against the next one's in its bucket: about the last 200 count
_DOUBT = 4.0  # guesses' worth of "wrong" that a bucket starts with
_AHEAD = 2  # guesses farther ahead are worth what those two layers ahead are


@dataclass
class Balance:
    """Fading sums. Times in seconds."""

    saved_s: float = 0.0
    harm_s: float = 0.0
    right: float = 0.0
    wrong: float = 0.0

    def fade(self) -> None:
        self.saved_s *= _FADE
        self.harm_s *= _FADE
        self.right *= _FADE
        self.wrong *= _FADE


class ProfitGate:
    """Admits predictions that are likely enough, while prefetching earns more stall than it causes.

    What a stated chance is worth is learned, apart for the next layer and for those after it: every prediction of an
    expert not resident is judged when its layer has run, read or not, so the gate goes on learning while it admits
    nothing. The precision it asks for rises while more than 0.4 wrong reads go with a right one, and falls otherwise.
    When prefetching loses over several forwards it pauses; after the pause a short probe decides; each failed probe
    doubles the pause. All times are measured by the caller and given in.
    """

    def __init__(self, waste_limit: float = _WASTE_LIMIT) -> None:
        self.precision_asked = _START
        self.balance = Balance()
        self.pauses = 0
        self._right = [[0.0] * (_BUCKETS + 1) for _ in range(_AHEAD)]
        self._judged = [[_DOUBT] * (_BUCKETS + 1) for _ in range(_AHEAD)]
        self._waste_limit = waste_limit
        self._pause = _FIRST_PAUSE
        self._left = 0
        self._probing = 0
        self._losing = 0

    @property
    def active(self) -> bool:
        return self._left == 0

    def precision(self, chance: float, ahead: int = 1) -> float:
        """How often a prediction that claimed about this chance, so many layers ahead, came true lately."""
        row, bucket = min(ahead, _AHEAD) - 1, int(chance * _BUCKETS)
        return self._right[row][bucket] / self._judged[row][bucket]

    def admits(self, chance: float, ahead: int = 1) -> bool:
        return self.active and self.precision(chance, ahead) >= self.precision_asked

    def judge(self, chance: float, ahead: int = 1, *, right: bool) -> None:
        """The layer of a prediction has run; for each chance that was stated."""
        row, bucket = min(ahead, _AHEAD) - 1, int(chance * _BUCKETS)
        self._right[row][bucket] = self._right[row][bucket] * _BUCKET_FADE + right
        self._judged[row][bucket] = self._judged[row][bucket] * _BUCKET_FADE + 1.0

    def was_read(self, *, right: bool) -> None:
        """The layer of an expert that was read ahead has run."""
        self.balance.right += right
        self.balance.wrong += not right

    def saved(self, seconds: float) -> None:
        """A prefetched expert was there when it was needed: so much of a demand read was not waited for."""
        self.balance.saved_s += seconds

    def harmed(self, seconds: float) -> None:
        """A demand read waited behind a prefetch, or an expert that a prefetch displaced was read again."""
        self.balance.harm_s += seconds

    def forward_done(self) -> None:
        """Once a forward: judges and adjusts."""
        if self._left:
            self._left -= 1
            if self._left == 0:
                self._probing, self._losing, self.balance = _PROBE_FORWARDS, 0, Balance()
            return
        self._adjust()
        self.balance.fade()

    def _adjust(self) -> None:
        balance = self.balance
        if balance.right + balance.wrong >= _ENOUGH:
            wasteful = balance.wrong > self._waste_limit * balance.right
            change = _STEP if wasteful else -_STEP / 5
            self.precision_asked = min(max(self.precision_asked + change, _LOWEST), _HIGHEST)
        losing = balance.harm_s > balance.saved_s
        self._losing = self._losing + 1 if losing else 0
        if self._probing:
            self._probing -= 1
            if self._probing == 0 and not losing:
                self._pause = _FIRST_PAUSE
        if self._losing >= _LOSING_FORWARDS:
            self._left, self._losing, self._probing = self._pause, 0, 0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self.pauses += 1
