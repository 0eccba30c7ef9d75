"""The exact law of the next token by numpy in double precision, written apart from the engine's, and chi-square."""

from collections.abc import Sequence
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from mtp_protocol.sampling import Sampling

Row = NDArray[np.float64]


def exact_law(logits: Sequence[float], history: Sequence[int], sampling: Sampling, window: int = 20) -> Row:
    """Probabilities [V]: mlx-lm's processors, then its filters at temperature 1, then the temperature."""
    scores = np.array(logits, dtype=np.float64)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    recent = list(history[-window:])
    for token in set(recent):
        divide = scores[token] > 0
        scores[token] = (
            scores[token] / sampling.repetition_penalty if divide else scores[token] * (sampling.repetition_penalty)
        )
        scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * recent.count(token)
    law = np.exp(scores - scores.max())
    law /= law.sum()
    order = np.argsort(-law, kind="stable")
    kept = set(range(len(law)))
    if sampling.top_p < 1:
        reached = np.cumsum(law[order])
        kept &= set(order[: int(np.searchsorted(reached, sampling.top_p) + 1)].tolist())
    if sampling.min_p > 0:
        kept &= {t for t in range(len(law)) if law[t] >= sampling.min_p * law.max()}
    if sampling.top_k > 0:
        kept &= set(order[: sampling.top_k].tolist())
    tempered = np.zeros_like(law)
    for token in kept:
        tempered[token] = law[token] ** (1.0 / sampling.temperature)
    return np.asarray(tempered / tempered.sum(), dtype=np.float64)


def chi_square_p(counts: Sequence[int] | NDArray[np.int64], law: Row) -> float:
    """The probability of counts at least as far from `law` by chance; 0 when an impossible token was drawn.

    Cells with fewer than 5 expected draws are pooled. The tail of chi-square by Wilson and Hilferty (1931).
    """
    observed = np.asarray(counts, dtype=np.float64)
    expected = law * observed.sum()
    if observed[expected == 0].any():
        return 0.0
    small = expected < 5
    cells = [*zip(observed[~small], expected[~small], strict=True)]
    if expected[small].sum() >= 5:
        cells.append((observed[small].sum(), expected[small].sum()))
    freedom = len(cells) - 1
    if freedom < 1:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))
    return 0.5 * erfc(z / sqrt(2))
