"""Experts worth holding for good: proposed on one text's routing, proved on another's, or left alone.

Pinning the statically hottest experts mostly loses to a policy that follows the text. So which share of the pool pins
may take is chosen on a part of the calibration, and whether they are worth anything is decided on routing that had no
part in choosing them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from mtp_loader.replay.run import MakePolicy, Tally, replay
from mtp_loader.replay.trace import Forward, Trace

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
_DEVIATIONS = 2.0


@dataclass(frozen=True)
class PinProof:
    """`hit_rate_with` and `without` are on the held-out routing. `pins` is empty where none may be held."""

    share: float
    pins: tuple[int, ...]
    hit_rate_with: float
    hit_rate_without: float
    requests: int

    @property
    def gain(self) -> float:
        """Hit rate won, as a share of all requests; negative where pins lose."""
        return self.hit_rate_with - self.hit_rate_without

    @property
    def pays(self) -> bool:
        """Whether the pins beat none by more than so many requests' luck."""
        luck = sqrt(self.hit_rate_without * (1.0 - self.hit_rate_without) / max(self.requests, 1))
        return bool(self.pins) and self.gain > _DEVIATIONS * luck


def hottest(trace: Trace, forwards: Sequence[Forward], slots: Mapping[int, int], share: float) -> tuple[int, ...]:
    """In each bank the most used experts, as many as `share` of its slots."""
    uses: dict[int, Counter[int]] = {bank: Counter() for bank in trace.banks}
    for forward in forwards:
        for event in forward.events:
            uses[trace.layers[event.layer].bank].update(event.keys)
    return tuple(key for bank in trace.banks for key, _ in uses[bank].most_common(int(slots[bank] * share)))


def prove(
    trace: Trace, held_out: Sequence[Forward], make: MakePolicy, slots: Mapping[int, int], reserve: int = 0
) -> PinProof:
    """Pins chosen on `trace`'s forwards, judged on `held_out`: the same model's routing of another text."""
    middle = len(trace.forwards) * 2 // 3
    learned, tried = trace.forwards[:middle], trace.forwards[middle:]

    def rate(forwards: Sequence[Forward], pins: Sequence[int]) -> float:
        return _rate(replay(replace(trace, forwards=forwards), make, slots, reserve, pins))

    best = max((0.0, *SHARES), key=lambda share: rate(tried, hottest(trace, learned, slots, share)))
    pins = hottest(trace, trace.forwards, slots, best)
    requests = sum(len(event.keys) for forward in held_out for event in forward.events)
    return PinProof(best, pins, rate(held_out, pins), rate(held_out, ()), requests)


def _rate(tallies: Mapping[int, Tally]) -> float:
    """Over everything that was asked: a pin that helps only the prompt helps too."""
    return sum(t.hits for t in tallies.values()) / max(sum(t.requests for t in tallies.values()), 1)
