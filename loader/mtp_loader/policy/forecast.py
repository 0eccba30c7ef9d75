"""A policy that learns, while it runs, how likely each expert is to be asked for at its layer's next visit."""

from collections.abc import Container, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from mtp_loader.policy.interface import EXPERT_BITS, Event, expert_of, key_of, layer_of

Row = NDArray[np.float32]
Experts = NDArray[np.intp]

_EXPERT = (1 << EXPERT_BITS) - 1
_ONE = np.float32(1.0)
_DECAY = np.exp2(np.array([-1 / 4, -1 / 16, 0.0], dtype=np.float32))[:, None]
_FEATURES = 5
_PRIMED = np.minimum(_ONE / np.maximum(_ONE - _DECAY, np.float32(1e-9)), np.float32(24.0))
_FLOOR = 0.01
_FLOORS = np.array([_FLOOR, _FLOOR, _FLOOR, 1.0, 0.02], dtype=np.float32)[:, None]
_OLDEST = np.float32(200.0)
_MEMORY = 256
_SHARPNESS = 4.0
_AFTER = np.array([1.0, 0.5, 0.25, 0.125], dtype=np.float32)
_RATE = np.float32(0.05)
_STEEPEST = np.float32(10.0)
_SURE = np.float32(0.999)
_START = (0.0, 0.7, 0.0, 0.0, 0.7)
_PHASE = 1.0
_UNSEEN = -8.0
_WIDTH = 64


class _Layer:
    """One layer's experts: what is known of each (columns), and the forecast made at the last visit."""

    def __init__(self) -> None:
        self.visits = 0
        self.width = 0
        self.total = np.zeros((3, 1), dtype=np.float32)
        self.uses = np.zeros((3, 0), dtype=np.float32)
        self.last = np.zeros(0, dtype=np.float32)
        self.raw = np.zeros((_FEATURES, 0), dtype=np.float32)
        self.features = np.zeros((_FEATURES, 0), dtype=np.float32)
        self.chance = np.zeros(0, dtype=np.float32)
        self.score = np.zeros(0, dtype=np.float32)
        self.absent = np.zeros(0, dtype=np.float32)
        self.memory = np.zeros((2 * _MEMORY, 0), dtype=np.float32)  # rows in order of time, moved down when full
        self.filled = 0

    def widen(self, expert: int) -> None:
        """Room for `expert`: columns grow in powers of two, so that what a model has need not be told."""
        width = max(_WIDTH, 1 << expert.bit_length())
        more = width - self.width
        self.uses = np.pad(self.uses, ((0, 0), (0, more)))
        self.last = np.pad(self.last, (0, more), constant_values=-_OLDEST)
        self.raw = np.zeros((_FEATURES, width), dtype=np.float32)
        self.features = np.pad(self.features, ((0, 0), (0, more)))
        self.chance = np.pad(self.chance, (0, more))
        self.score = np.pad(self.score, (0, more), constant_values=_UNSEEN)
        self.absent = np.pad(self.absent, (0, more), constant_values=np.inf)
        self.memory = np.pad(self.memory, ((0, 0), (0, more)))
        self.width = width

    def prime(self, frequencies: Row) -> None:
        """Counts as if so many visits had gone by; what then happens outweighs them soon."""
        self.widen(len(frequencies) - 1)
        self.total = _PRIMED.copy()
        self.uses[:, : len(frequencies)] = frequencies * _PRIMED
        self.score[: len(frequencies)] = np.log(frequencies + _FLOOR)

    def lesson(self, experts: Experts) -> Row:
        """The gradient of the last forecast's error, now that the answer is known: [features]."""
        error = self.chance
        error[experts] -= _ONE
        gradient: Row = self.features @ error
        return gradient

    def forecast(self, experts: Experts, weights: Row) -> None:
        """Takes a visit's experts in and scores every expert: score = log of its chance at the next visit."""
        self.visits += 1
        raw = self.raw
        newest = self._remember(experts)
        self.uses *= _DECAY
        self.uses += newest
        self.total = self.total * _DECAY + _ONE
        self.last[experts] = self.visits
        np.multiply(self.uses, _ONE / self.total, out=raw[:3])
        np.minimum(np.float32(self.visits) - self.last, _OLDEST, out=raw[3])
        raw[4] = self._followers(newest, len(experts))
        raw += _FLOORS
        np.log(raw, out=self.features)
        score = weights @ self.features
        chance = np.exp(score)
        scale = len(experts) / float(np.add.reduce(chance))
        chance *= np.float32(scale)
        self.chance = np.minimum(chance, _SURE, out=chance)
        score += np.float32(log(scale))
        self.score = score

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
        """Who was asked for within four visits after one that looked like this: kernel regression over the last 256."""
        seen = self.memory[max(self.filled - _MEMORY, 0) : self.filled]
        if len(seen) < 3:
            return 0.0
        alike = np.exp((seen[:-1] @ newest) * np.float32(_SHARPNESS / asked))
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
        expert = expert_of(key)
        self._layer(layer_of(key), expert).absent[expert] = 0.0
        self._stale.add(layer_of(key))

    def remove(self, key: int) -> None:
        layer = self._layers.get(layer_of(key))
        if layer is not None and expert_of(key) < layer.width:
            layer.absent[expert_of(key)] = np.inf
            self._stale.add(layer_of(key))

    def victims(self, n: int, protected: Container[int]) -> list[int]:
        self._refresh()
        distance = self._distance()
        lowest = self._low - distance
        opened: dict[int, Row] = {}
        found: list[int] = []
        while len(found) < n and len(lowest):
            row = int(lowest.argmin())
            if lowest[row] == np.inf:
                break
            if row not in opened:
                layer = self._layers[self._ids[row]]
                opened[row] = layer.score + layer.absent
            ranked = opened[row]
            expert = int(ranked.argmin())
            ranked[expert] = np.inf
            lowest[row] = np.minimum.reduce(ranked) - distance[row]
            key = key_of(self._ids[row], expert)
            if key not in protected:
                found.append(key)
        return found

    def _distance(self) -> Row:
        """By row: how far off the layer's next visit is, in nats; the layer asked just now is the farthest."""
        layers = len(self._ids)
        rounds = (np.arange(layers) - self._row.get(self._asked, 0) - 1) % max(layers, 1)
        return np.asarray(rounds * (_PHASE / max(layers, 1)), dtype=np.float32)

    def _refresh(self) -> None:
        """The lowest candidate's score of each layer that changed since."""
        for identity in self._stale:
            layer = self._layers[identity]
            self._low[self._row[identity]] = np.minimum.reduce(layer.score + layer.absent)
        self._stale.clear()

    def _layer(self, identity: int, expert: int) -> _Layer:
        layer = self._layers.get(identity)
        if layer is None:
            layer = self._layers[identity] = _Layer()
            self._ids = sorted(self._layers)
            self._row = {identity: row for row, identity in enumerate(self._ids)}
            self._low = np.zeros(len(self._ids), dtype=np.float32)
            self._stale = set(self._ids)
        if expert >= layer.width:
            layer.widen(expert)
        return layer
