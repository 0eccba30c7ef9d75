"""A policy that learns, while it runs, how likely each expert is to be asked for at its layer's next visit."""

from collections.abc import Container, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from mtp_loader.policy.interface import EXPERT_BITS, Event, key_of

Row = NDArray[np.float32]
Experts = NDArray[np.intp]

_EXPERT = (1 << EXPERT_BITS) - 1
_ONE = np.float32(1.0)
_DECAY = np.exp2(np.array([-1 / 4, -1 / 16, 0.0], dtype=np.float32))[:, None]  # half-lives 4 and 16 visits, and none
_FEATURES, _AGE, _FOLLOWERS = 5, 3, 4
_PRIMED = np.minimum(_ONE / np.maximum(_ONE - _DECAY, np.float32(1e-9)), np.float32(24.0))  # visits
_FLOOR = np.float32(0.01)  # use rate a visit below which experts are alike; keeps logarithms finite
_FOLLOWERS_FLOOR = np.float32(0.02)  # likewise for a share of followers, which rests on fewer visits
_NOTHING = np.float32(1e-6)  # a count that no visit has touched: below all that one has
_OLDEST = np.float32(200.0)  # visits; beyond, age tells no more
_MEMORY = 256  # visits of a layer that the present one is compared with: work and memory grow with it
_SHARPNESS, _CONTEXT = 4.0, np.float32(0.4)
_AFTER = np.array([1.0, 0.5, 0.25, 0.125], dtype=np.float32)  # a follower one to four visits later
_RATE = np.float32(0.05)  # of AdaGrad; others: docs/policies.md, as for kernel, cycle and starting weights
_STEEPEST = np.float32(10.0)  # no weight beyond: after a run of sure visits it must still learn
_SURE = np.float32(0.999)  # no chance above: its log odds would be infinite
_START = (0.0, 0.7, 0.0, 0.0, 0.7)
_PHASE = 1.0  # nats that a whole cycle of layers costs
_UNSEEN, _WIDTH = -8.0, 64  # log chance of an expert never scored: given up first; columns to begin with


class _Layer:
    """One layer's experts: what is known of each (columns), and the forecast made at the last visit.

    `raw` holds the features before the logarithm: three decaying counts of uses, the age in visits, the share of
    followers. A count is not divided by the visits it is of: that shifts the logarithm of all experts of the layer
    alike, and their chances add up to the layer's top-k whatever the shift. Each visit also adds a little to every
    count, so that none is zero (nor so near to it that the processor becomes slow).
    """

    def __init__(self) -> None:
        self.visits = 0
        self.width = 0
        self.raw = np.zeros((_FEATURES, 0), dtype=np.float32)
        self.features = np.zeros((_FEATURES, 0), dtype=np.float32)
        self.chance = np.zeros(0, dtype=np.float32)
        self.score = np.zeros(0, dtype=np.float32)
        self.absent = np.zeros(0, dtype=np.float32)  # 0 for a candidate, infinite for the others
        self.ranked = np.zeros(0, dtype=np.float32)  # score + absent
        self.lowest = 0  # where `ranked` is lowest, once refreshed
        self.memory = np.zeros((2 * _MEMORY, 0), dtype=np.float32)  # rows in order of time, moved down when full
        self.filled = 0
        self.likeness = np.zeros(0, dtype=np.float32)  # of the visits before the last to it

    def widen(self, expert: int) -> None:
        """Room for `expert`: columns grow in powers of two, so that what a model has need not be told."""
        width = max(_WIDTH, 1 << expert.bit_length())
        more = width - self.width
        unused = self.raw.min(axis=1, keepdims=True) if self.width else _NOTHING
        self.raw = np.pad(self.raw, ((0, 0), (0, more)))
        self.raw[:, self.width :] = unused
        self.raw[_AGE, self.width :] = _OLDEST
        self.features = np.pad(self.features, ((0, 0), (0, more)))
        self.chance = np.pad(self.chance, (0, more))
        self.score = np.pad(self.score, (0, more), constant_values=_UNSEEN)
        self.absent = np.pad(self.absent, (0, more), constant_values=np.inf)
        self.ranked = self.score + self.absent
        self.memory = np.pad(self.memory, ((0, 0), (0, more)))
        self.width = width

    def prime(self, frequencies: Row) -> None:
        """Counts as if so many visits had gone by; what then happens outweighs them soon."""
        self.widen(len(frequencies) - 1)
        self.raw[:3] = _PRIMED * _FLOOR
        self.raw[:3, : len(frequencies)] += frequencies * _PRIMED
        self.score[: len(frequencies)] = np.log(frequencies + _FLOOR)
        self.ranked = self.score + self.absent

    def lesson(self, experts: Experts) -> Row:
        """The gradient of the last forecast's error, now that the answer is known: [features]."""
        error = self.chance
        error[experts] -= _ONE
        gradient: Row = self.features @ error
        return gradient

    def forecast(self, experts: Experts, weights: Row) -> None:
        """Takes a visit's experts in and scores every expert: score = log of its chance at the next visit."""
        self.visits += 1
        newest = self._remember(experts)
        raw, features = self.raw, self.features
        uses, age = raw[:3], raw[_AGE]
        uses *= _DECAY
        uses += newest
        uses += _FLOOR
        age += _ONE
        age[experts] = _ONE
        np.minimum(age, _OLDEST, out=age)
        np.add(self._followers(newest, len(experts)), _FOLLOWERS_FLOOR, out=raw[_FOLLOWERS])
        np.log(raw, out=features)
        score = weights @ features
        score -= np.maximum.reduce(score)  # or text that repeats for long drives the sum of what follows to infinity
        chance = np.exp(score)
        scale = len(experts) / float(np.add.reduce(chance))
        chance *= np.float32(scale)
        self.chance = np.minimum(chance, _SURE, out=chance)
        score += np.float32(log(scale))
        self.score = score
        self.ranked = score + self.absent

    def _remember(self, experts: Experts) -> Row:
        """The visit as a row of ones and zeros, kept; a view."""
        if self.filled == len(self.memory):
            self.memory[:_MEMORY] = self.memory[-_MEMORY:]
            self.filled = _MEMORY
        newest: Row = self.memory[self.filled]
        newest[:] = 0.0
        newest[experts] = 1.0
        self.filled += 1
        return newest

    def _followers(self, newest: Row, asked: int) -> Row | float:
        """Who was asked for within four visits after one that looked like this: kernel regression over the last 256.

        Two visits are alike by the experts they share, and somewhat by how alike the visits before them were.
        """
        if self.filled < 3:
            return 0.0
        seen = self.memory[max(self.filled - _MEMORY, 0) : self.filled]
        likeness = seen[:-1] @ newest
        before = self.likeness[1 - len(likeness) :]
        likeness[len(likeness) - len(before) :] += before * _CONTEXT
        self.likeness = likeness
        alike = np.exp(likeness * np.float32(_SHARPNESS / asked))
        followed = np.zeros(len(seen), dtype=np.float32)
        followed[1:] = np.convolve(alike, _AFTER)[: len(alike)]
        followed *= _ONE / np.add.reduce(followed)
        followers: Row = followed @ seen
        return followers


class Forecast:
    """Gives up the expert least likely to be asked for soon.

    At each visit of a layer, a conditional logit model over its experts says who comes next: features are the logs of
    use frequencies with half-lives of 4 and 16 visits and over all time, of the age in visits, and of how often each
    followed earlier visits that looked like this one. The five weights are shared by all layers and learned online
    (AdaGrad on the multinomial likelihood) from how the last forecast did, so the mixture of recency, frequency and
    context follows the model and the text. Layers are visited in a cycle: of two equal chances the one whose layer
    comes round later goes first (`_PHASE`, in nats a cycle).

    The work an event takes grows with a layer's experts, a victim's with the layers: never with the pool.
    """

    def __init__(self) -> None:
        self._weights = np.array(_START, dtype=np.float32)
        self._squares = np.full(_FEATURES, 0.1, dtype=np.float32)
        self._layers: dict[int, _Layer] = {}
        self._ids: list[int] = []
        self._row: dict[int, int] = {}
        self._low = np.zeros(0, dtype=np.float32)
        self._far = _distances(0)
        self._stale: set[int] = set()
        self._asked = 0

    def record(self, event: Event) -> None:
        experts = np.array([key & _EXPERT for key in event.keys], dtype=np.intp)
        layer = self._layer(event.layer, max(event.keys) & _EXPERT)
        if layer.visits:
            gradient = layer.lesson(experts)
            self._squares += gradient * gradient
            self._weights -= _RATE * gradient / np.sqrt(self._squares)
            np.minimum(self._weights, _STEEPEST, out=self._weights)
            np.maximum(self._weights, -_STEEPEST, out=self._weights)
        layer.forecast(experts, self._weights)
        self._asked = event.layer
        self._stale.add(event.layer)

    def prime(self, layer: int, frequencies: Sequence[float]) -> None:
        """See `Primed`."""
        self._layer(layer, len(frequencies) - 1).prime(np.array(frequencies, dtype=np.float32))
        self._stale.add(layer)

    def insert(self, key: int) -> None:
        identity, expert = key >> EXPERT_BITS, key & _EXPERT
        layer = self._layer(identity, expert)
        layer.absent[expert] = 0.0
        layer.ranked[expert] = layer.score[expert]
        self._stale.add(identity)

    def remove(self, key: int) -> None:
        identity, expert = key >> EXPERT_BITS, key & _EXPERT
        layer = self._layers.get(identity)
        if layer is not None and expert < layer.width:
            layer.absent[expert] = layer.ranked[expert] = np.inf
            self._stale.add(identity)

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        if not self._ids:
            return []
        self._refresh()
        distance = self._far[self._row.get(self._asked, 0)]
        lowest = self._low - distance
        found: list[int] = []
        passed: list[tuple[_Layer, int, np.float32]] = []
        at: dict[int, int] = {}
        while len(found) < n:
            row = int(lowest.argmin())
            if lowest[row] == np.inf:
                break
            layer = self._layers[self._ids[row]]
            expert = at.get(row, layer.lowest)
            ranked = layer.ranked
            passed.append((layer, expert, ranked[expert]))
            ranked[expert] = np.inf  # for this search; put back below
            following = at[row] = int(ranked.argmin())
            lowest[row] = ranked[following] - distance[row]
            key = key_of(self._ids[row], expert)
            if key not in protected:
                found.append(key)
        for layer, expert, rank in passed:
            layer.ranked[expert] = rank
        return found

    def _refresh(self) -> None:
        """The lowest candidate's score of each layer that changed since."""
        for identity in self._stale:
            layer = self._layers[identity]
            layer.lowest = int(layer.ranked.argmin())
            self._low[self._row[identity]] = layer.ranked[layer.lowest]
        self._stale.clear()

    def _layer(self, identity: int, expert: int) -> _Layer:
        layer = self._layers.get(identity)
        if layer is None:
            layer = self._layers[identity] = _Layer()
            self._ids = sorted(self._layers)
            self._row = {identity: row for row, identity in enumerate(self._ids)}
            self._low = np.zeros(len(self._ids), dtype=np.float32)
            self._far = _distances(len(self._ids))
            self._stale = set(self._ids)
        if expert >= layer.width:
            layer.widen(expert)
        return layer


def _distances(layers: int) -> Row:
    """`[asked, layer]`: how far off each layer's next visit is, in nats; the layer asked just now is the farthest."""
    rows = np.arange(layers)
    return ((rows[None, :] - rows[:, None] - 1) % max(layers, 1) * (_PHASE / max(layers, 1))).astype(np.float32)
