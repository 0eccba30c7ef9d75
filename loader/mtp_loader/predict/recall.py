"""Recall of the true experts among the best k and best 2k of each source, by layer: so far, and lately."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LATELY = 0.97  # weight of the past in what "lately" means: about the last 30 visits


@dataclass
class Meter:
    """One source in one layer. `at_k / wanted` is its recall so far, `lately` the same with the past fading."""

    lately: float
    wanted: int = 0
    at_k: int = 0
    at_2k: int = 0

    def add(self, row: NDArray[np.float32], experts: NDArray[np.intp]) -> None:
        """A forecast `row` was followed by `experts`; k is how many there were."""
        k = len(experts)
        best = np.argpartition(-row, 2 * k - 1)[: 2 * k] if 2 * k < len(row) else np.arange(len(row))
        best = best[np.argsort(-row[best], kind="stable")]
        best = best[row[best] > 0.0]  # what a source did not announce is no prediction
        true = np.zeros(len(row), dtype=np.bool_)
        true[experts] = True
        hit_k = int(true[best[:k]].sum())
        self.wanted += k
        self.at_k += hit_k
        self.at_2k += int(true[best[: 2 * k]].sum())
        self.lately = self.lately * _LATELY + hit_k / k * (1.0 - _LATELY)
