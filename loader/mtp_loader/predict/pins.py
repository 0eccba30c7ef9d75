"""Experts worth holding for good: proposed on some texts' routing, proved on others', or left alone.

Pinning the statically hottest experts mostly loses to a policy that follows the text. So which share of the pool pins
may take is chosen on a part of the learned texts, and whether they are worth anything is decided on texts that had no
part in choosing them, in a pool that is warm with or without pins.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import variance
from typing import Any

from mtp_loader.errors import BadRequest
from mtp_loader.replay.run import MakePolicy, make_banks
from mtp_loader.replay.trace import DECODE, PROMPT, Forward, Trace

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
LEAST_FORWARDS = 48
_BLOCKS = 16
_DEVIATIONS = 2.0
_WARM_UP = 256


@dataclass(frozen=True)
class PinProof:
    """`hit_rate_with` and `without` are on the texts held out, over `requests` experts asked for there.

    `luck` is what the gain would have to exceed by chance alone: two standard errors of the difference, taken over
    blocks of consecutive forwards, as requests near to each other are alike. `pins` is empty where none may be held.
    """

    share: float
    pins: tuple[int, ...]
    hit_rate_with: float
    hit_rate_without: float
    luck: float
    requests: int

    @property
    def gain(self) -> float:
        """Hit rate won, as a share of all requests; negative where pins lose."""
        return self.hit_rate_with - self.hit_rate_without

    @property
    def pays(self) -> bool:
        """Whether the pins beat none by more than luck."""
        return bool(self.pins) and self.gain > self.luck


def facts(proof: PinProof) -> dict[str, Any]:
    """A proof's figures; rates and `luck` as shares of the requests held out."""
    return {
        "pays": proof.pays,
        "share_of_pool": proof.share,
        "pins": len(proof.pins),
        "hit_rate_with": proof.hit_rate_with,
        "hit_rate_without": proof.hit_rate_without,
        "gain": proof.gain,
        "luck": proof.luck,
        "requests": proof.requests,
    }


def texts(forwards: Sequence[Forward]) -> list[list[Forward]]:
    """A recording's requests: each begins with the first forward of its prompt."""
    found: list[list[Forward]] = []
    phase = DECODE
    for forward in forwards:
        if not found or (phase, forward.phase) == (DECODE, PROMPT):
            found.append([])
        found[-1].append(forward)
        phase = forward.phase
    return found


def split(forwards: Sequence[Forward]) -> tuple[list[Forward], list[Forward]]:
    """About the first two thirds to learn on and the rest to prove on: whole texts, where there are at least three.

    Raises BadRequest for too little routing to say anything.
    """
    if len(forwards) < LEAST_FORWARDS:
        raise BadRequest(
            f"there are {len(forwards)} forwards of recorded routing, and pins are not judged on fewer than "
            f"{LEAST_FORWARDS}: use more text"
        )
    whole = texts(forwards)
    if len(whole) < 3:
        whole = [[forward] for forward in forwards]
    learned: list[Forward] = []
    for i, text in enumerate(whole[:-1]):
        if i and len(learned) + len(text) > len(forwards) * 2 // 3:
            break
        learned += text
    return learned, list(forwards[len(learned) :])


def hottest(trace: Trace, forwards: Sequence[Forward], slots: Mapping[int, int], share: float) -> tuple[int, ...]:
    """In each bank the most used experts, as many as `share` of its slots."""
    uses: dict[int, Counter[int]] = {bank: Counter() for bank in trace.banks}
    for forward in forwards:
        for event in forward.events:
            uses[trace.layers[event.layer].bank].update(event.keys)
    return tuple(key for bank in trace.banks for key, _ in uses[bank].most_common(int(slots[bank] * share)))


class Proving:
    """Replays of one model's routing in one pool. `reserve` as the loader's setting, `slots` by bank."""

    def __init__(self, trace: Trace, make: MakePolicy, slots: Mapping[int, int], reserve: int | None = 0) -> None:
        self._trace, self._make, self._slots, self._reserve = trace, make, slots, reserve

    def prove(self, learned: Sequence[Forward], held_out: Sequence[Forward], shares: Sequence[float]) -> PinProof:
        """Pins chosen on `learned`, as many as the best of `shares`, judged on `held_out`."""
        middle = len(learned) * 2 // 3
        early, tried = learned[:middle], learned[middle:]
        best = max((0.0, *shares), key=lambda share: sum(self._hits(early, tried, self._hottest(early, share))))
        pins = self._hottest(learned, best)
        requests = max(sum(len(event.keys) for forward in held_out for event in forward.events), 1)
        with_pins, without = self._hits(learned, held_out, pins), self._hits(learned, held_out, ())
        luck = _DEVIATIONS * _standard_error([a - b for a, b in zip(with_pins, without, strict=True)])
        return PinProof(best, pins, sum(with_pins) / requests, sum(without) / requests, luck / requests, requests)

    def _hottest(self, forwards: Sequence[Forward], share: float) -> tuple[int, ...]:
        return hottest(self._trace, forwards, self._slots, share)

    def _hits(self, before: Sequence[Forward], counted: Sequence[Forward], pins: Sequence[int]) -> list[int]:
        """Hits in each counted forward; the ones before fill the pool, or pins would win by being there first.

        Everything asked for counts: a pin that helps only the prompt helps too.
        """
        banks = make_banks(self._trace, self._make, self._slots, self._reserve, pins)
        of_layer = {y.layer: banks[y.bank] for y in self._trace.layers.values()}
        hits = []
        for forward in (*before[-_WARM_UP:], *counted):
            hits.append(sum(len(event.keys) - len(of_layer[event.layer].request(event)) for event in forward.events))
        return hits[len(hits) - len(counted) :]


def _standard_error(differences: Sequence[int]) -> float:
    """Of their sum: blocks of consecutive ones are taken for independent, single ones are not."""
    blocks = min(_BLOCKS, len(differences))
    ends = [len(differences) * i // blocks for i in range(blocks + 1)]
    sums = [sum(differences[a:b]) for a, b in pairwise(ends)]
    return sqrt(blocks * variance(sums)) if blocks > 1 else float("inf")
