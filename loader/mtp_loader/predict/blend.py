"""The predictor: all sources, weighed per layer by how well each has been doing lately."""

from collections.abc import Container, Sequence

import numpy as np

from mtp_loader.policy.interface import Event, expert_of, key_of
from mtp_loader.predict.recall import Meter
from mtp_loader.predict.sources import Hints, LayerShape, Recent, Routing, Row, Shapes, Source, TokenTable, Transitions

__all__ = ["LayerShape", "Predictor"]

# Recall a source is credited with before it was measured: a little less than on the demo model; tokens and transitions
# much less, for their tables are empty at first. What is measured takes over within some 30 visits of a layer.
_PRIOR = {"hint1": 0.7, "hint2": 0.6, "recent": 0.35, "transitions": 0.3, "tokens": 0.3}
_BLEND = "blend"
_SHARPNESS = 3.0  # a source's say grows with the cube of its recall: .8 against .5 counts four times as much
_LARGE_FORWARD = 16  # tokens: with more, the union of their experts is most of a layer and ranking it says little
_USES_FADE = 0.998  # a token's weight against the next one's in the long-term frequencies: half-life 350 tokens


class Predictor:
    """Says which experts the running forward will probably need. Pure; one instance for all banks.

    Told of each layer's experts in order (`on_event`, hits and misses alike), of hints between, and of every token's
    routing some time after its forward (`on_used`). A forward begins where its tokens are given (`on_start`), where a
    hint carries another step, or at a layer that does not rise. `wanted` may be asked at any time. Forwards over more
    than 16 tokens teach, but are not predicted: they need nearly everything.
    """

    def __init__(self, shapes: Shapes, ahead: int = 2) -> None:
        self._shapes = shapes
        self._ids = sorted(shapes)
        self._position = {layer: i for i, layer in enumerate(self._ids)}
        self._ahead = ahead
        self.hints = {n: Hints(shapes, n) for n in (1, 2)}
        self.transitions = Transitions(shapes)
        self.tokens = TokenTable(shapes)
        self._sources: tuple[Source, ...] = (*self.hints.values(), Recent(shapes), self.transitions, self.tokens)
        self.meters = {
            layer: {name: Meter(_PRIOR.get(name, 0.5)) for name in (*(s.name for s in self._sources), _BLEND)}
            for layer in self._ids
        }
        self.uses = {layer: np.zeros(shapes[layer].experts, dtype=np.float32) for layer in self._ids}
        self._given: dict[int, dict[str, Row]] = {}
        self._at = self._last = -1
        self._step = -1
        self._large = False

    @property
    def at(self) -> int:
        """The last layer whose experts are known in the running forward; -1 before the first."""
        return self._ids[self._last] if self._last >= 0 else -1

    def ahead(self, layer: int) -> int:
        """How many layers lie between here and the end of `layer`: 1 for the next one."""
        return self._position[layer] - self._at

    def on_start(self, tokens: Sequence[int], step: int = -1) -> None:
        """A forward over these tokens (empty where they are not known) begins; `step` as its hints will carry it."""
        self._step = step if step >= 0 else self._step
        for source in self._sources:
            source.start(tokens)
        self._given.clear()
        self._at = self._last = -1
        self._large = len(tokens) > _LARGE_FORWARD

    def on_hint(self, step: int, layers: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> None:
        """What the gates of the next layers say, nearest first; said by the layer before the nearest.

        A layer already passed, or one that this model lacks, is ignored.
        """
        if step != self._step:
            if self._step >= 0:
                self.on_start(())
            self._step = step
        known = [(self._position[layer], layer, weighted) for layer, weighted in layers if layer in self._position]
        if known:
            first = min(known)[0]
            self._at = max(self._at, first - 1)
            for position, layer, weighted in known:
                if position > self._at and (hints := self.hints.get(position - first + 1)) is not None:
                    hints.hint(layer, weighted)

    def on_event(self, event: Event) -> None:
        """The running forward needs these experts. Scores what was forecast for the layer."""
        position = self._position.get(event.layer)
        if position is None:
            return
        if position <= self._last:
            self.on_start(())
        self._last = position
        self._at = max(self._at, position)
        self._large = event.tokens > _LARGE_FORWARD
        experts = np.array([expert_of(key) for key in event.keys], dtype=np.intp)
        if event.tokens == 1:
            for name, row in self._given.pop(event.layer, {}).items():
                self.meters[event.layer][name].add(row, experts)
        for source in self._sources:
            source.observe(event.layer, experts)

    def on_used(self, tokens: Sequence[int], routing: Sequence[tuple[int, Sequence[Sequence[int]]]]) -> None:
        """The forward is over: each layer's experts, one sequence a token."""
        known: Routing = [(y, np.array(e, dtype=np.intp)) for y, e in routing if y in self._position and len(e)]
        for source in self._sources:
            source.learn(tokens, known)
        for layer, experts in known:
            uses = self.uses[layer]
            uses *= np.float32(_USES_FADE ** len(experts))
            np.add.at(uses, experts.ravel(), np.float32(1.0 - _USES_FADE))

    def wanted(self, budget: int, skip: Container[int] = ()) -> list[tuple[int, float]]:
        """Up to `budget` (key, chance) of the next layers, soonest layer first and likeliest first within a layer.

        `skip` holds what is resident or on its way.
        """
        found: list[tuple[int, float]] = []
        if self._large:
            return found
        for layer in self._ids[self._at + 1 : self._at + 1 + self._ahead]:
            row = self._forecast(layer)
            if row is None:
                continue
            best = np.argsort(-row, kind="stable")[: 2 * self._shapes[layer].top_k]
            for expert in best:
                key = key_of(layer, int(expert))
                if row[expert] <= 0.0 or len(found) >= budget:
                    break
                if key not in skip:
                    found.append((key, float(row[expert])))
        return found

    def likely(self, slots: int, layers: Sequence[int]) -> list[int]:
        """The experts of `layers` most used over long, likeliest first: what to fill a cold pool with."""
        shares = [(-float(use), key_of(y, e)) for y in layers for e, use in enumerate(self.uses[y]) if use > 0.0]
        return [key for _, key in sorted(shares)[:slots]]

    def frequencies(self, layer: int) -> list[float]:
        """In which share of the layer's visits each expert was asked for, over long; empty before any was seen."""
        uses = self.uses[layer]
        total = float(uses.sum())
        return (uses * (self._shapes[layer].top_k / total)).clip(0.0, 1.0).tolist() if total else []

    def _forecast(self, layer: int) -> Row | None:
        given: dict[str, Row] = {}
        total: Row | None = None
        weight = 0.0
        for source in self._sources:
            row = source.forecast(layer)
            if row is None:
                continue
            given[source.name] = row
            meter = self.meters[layer][source.name]
            share = meter.lately**_SHARPNESS
            scaled = row * np.float32(share * meter.lately)
            total = scaled if total is None else total + scaled
            weight += share
        if total is None:
            return None
        blend: Row = np.minimum(total / np.float32(max(weight, 1e-6)), np.float32(1.0))
        given[_BLEND] = blend
        # Rows that sources go on changing must be scored as they were when they were given.
        self._given[layer] = {name: row.copy() for name, row in given.items()}
        return blend
