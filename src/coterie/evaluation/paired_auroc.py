"""Whether one model ranks a client's examples better than another: AUROCs of both on the same examples.

After DeLong, DeLong and Clarke-Pearson (1988): the AUROC is the mean over positive examples of how many negative ones
score below them, and over negative ones of how many positive ones score above. Differences of these *placements*
between two models have a variance, and so has the difference of the AUROCs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.evaluation.guard import PRIOR_DEGREES, Evidence

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Validation examples with the scores of two models, arrays ``(n,)``.

    Attributes:
        alone, personalised: probabilities of the second class.
        positive: whether an example is of the second class.
        owner: whose it is, in 0 .. clients - 1.
    """

    alone: Floats
    personalised: Floats
    positive: NDArray[np.bool_]
    owner: NDArray[np.int64]


def auroc_evidence(folds: Sequence[Scored], clients: int) -> Evidence:
    """What validation says of each client's AUROC, ``(K,)``; scores of different folds are of different models.

    Folds are averaged by ``m n / (m + n)``, with m positive and n negative examples. A variance is drawn to that of all
    clients together, as in `evidence`. A client with one class in each fold has no evidence, and NaN.
    """
    parts = [(client, _placements(fold, fold.owner == client)) for client in range(clients) for fold in folds]
    kept = [(client, part) for client, part in parts if part is not None]
    n = sum((np.bincount(fold.owner, minlength=clients) for fold in folds), np.zeros(clients, dtype=np.int64))
    spreads = [_spreads([(client, part[side]) for client, part in kept], clients) for side in (0, 1)]
    difference, variance = np.full(clients, np.nan), np.full(clients, np.nan)
    for client in range(clients):
        own = [part for owner, part in kept if owner == client]
        if own:
            m, others = (np.array([len(part[side]) for part in own], dtype=np.float64) for side in (0, 1))
            weight = m * others / (m + others)
            weight /= weight.sum()
            difference[client] = weight @ np.array([part[0].mean() for part in own])
            variance[client] = weight**2 @ (spreads[0][client] / m + spreads[1][client] / others)
    return Evidence(n, difference, variance)


def _placements(fold: Scored, rows: NDArray[np.bool_]) -> tuple[Floats, Floats] | None:
    """How both models' placements of positive ``(m,)`` and negative examples ``(n,)`` differ; None for one class."""
    positive = fold.positive[rows]
    if positive.all() or not positive.any():
        return None
    above = []
    for scores in (fold.personalised[rows], fold.alone[rows]):
        pairs = scores[positive][:, None] - scores[~positive][None, :]
        above.append((pairs > 0) + 0.5 * (pairs == 0))
    delta = above[0] - above[1]
    return delta.mean(1), delta.mean(0)


def _spreads(parts: Sequence[tuple[int, Floats]], clients: int) -> Floats:
    """The variance of placements of each client, ``(K,)``, within its folds and drawn to that of all."""
    squares, degrees = np.zeros(clients), np.zeros(clients)
    for client, values in parts:
        squares[client] += ((values - values.mean()) ** 2).sum()
        degrees[client] += len(values) - 1
    common = squares.sum() / max(1.0, degrees.sum())
    return np.asarray((squares + PRIOR_DEGREES * common) / (degrees + PRIOR_DEGREES))
