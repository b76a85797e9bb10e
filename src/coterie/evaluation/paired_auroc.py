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
from coterie.evaluation.moments import Moments

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


Placements = tuple[Moments, Moments]
"""How two models' placements of positive and of negative examples differ; one of them is of none for one class."""


def auroc_evidence(folds: Sequence[Scored], clients: int) -> Evidence:
    """What validation says of each client's AUROC, ``(K,)``; scores of different folds are of different models.

    Folds are averaged by ``m n / (m + n)``, with m positive and n negative examples. A variance is drawn to that of all
    clients together, as in `evidence`. A client with one class in each fold has no evidence, and NaN.
    """
    rows = [_rows(fold.owner, clients) for fold in folds]
    pairs = list(zip(folds, rows, strict=True))
    return of_placements([[placements(fold, own[client]) for fold, own in pairs] for client in range(clients)])


def of_placements(clients: Sequence[Sequence[Placements]]) -> Evidence:
    """The same from the `placements` of each client, fold by fold."""
    kept = [[part for part in parts if part[0].n and part[1].n] for parts in clients]
    n = np.array([sum(side.n for part in parts for side in part) for parts in clients], dtype=np.int64)
    spreads = [_spreads([[part[side] for part in parts] for parts in kept]) for side in (0, 1)]
    difference, variance = np.full(len(clients), np.nan), np.full(len(clients), np.nan)
    for client, own in enumerate(kept):
        if own:
            m, others = (np.array([part[side].n for part in own], dtype=np.float64) for side in (0, 1))
            weight = m * others / (m + others)
            weight /= weight.sum()
            difference[client] = weight @ np.array([part[0].mean for part in own])
            variance[client] = weight**2 @ (spreads[0][client] / m + spreads[1][client] / others)
    return Evidence(n, difference, variance)


def placements(fold: Scored, rows: NDArray[np.int64]) -> Placements:
    """How both models' placements of positive and negative examples differ, among ``rows: (m,)`` of a fold."""
    positive = fold.positive[rows]
    if positive.all() or not positive.any():
        return Moments(int(positive.sum()), 0.0, 0.0), Moments(int((~positive).sum()), 0.0, 0.0)
    above = []
    for scores in (fold.personalised[rows], fold.alone[rows]):
        pairs = scores[positive][:, None] - scores[~positive][None, :]
        above.append((pairs > 0) + 0.5 * (pairs == 0))
    delta = above[0] - above[1]
    return Moments.of(delta.mean(1)), Moments.of(delta.mean(0))


def _rows(owner: NDArray[np.int64], clients: int) -> list[NDArray[np.int64]]:
    """The rows of each client, in their order, by the ``owner: (n,)`` of all, who are sorted once."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def _spreads(clients: Sequence[Sequence[Moments]]) -> Floats:
    """The variance of placements of each client, ``(K,)``, within its folds and drawn to that of all."""
    squares = np.array([sum(part.squares for part in parts) for parts in clients], dtype=np.float64)
    degrees = np.array([sum(part.n - 1 for part in parts) for parts in clients], dtype=np.float64)
    common = squares.sum() / max(1.0, degrees.sum())
    return np.asarray((squares + PRIOR_DEGREES * common) / (degrees + PRIOR_DEGREES))
