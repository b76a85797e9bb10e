"""Metrics of many clients at once, computed from what was predicted for each example.

Examples lie flat, ``(n,)``, in any order; ``owners: (n,)`` names the client, 0 to K - 1, of each. Results are ``(K,)``,
NaN where the metric is not defined for a client's data. Nothing is computed client by client.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

BINS = 10
"""Of the calibration error: equally wide, from 0 to 1, closed on the right."""


def auroc(scores: Floats, positive: NDArray[np.bool_], owners: Whole, k: int) -> Floats:
    """The probability that a positive example scores higher than a negative one, where a tie counts one half.

    Not defined for clients of one class only.
    """
    order = np.lexsort((scores, owners))
    scores, positive, owners = scores[order], positive[order], owners[order]
    first, last = _groups(scores, owners)
    n = np.bincount(owners, minlength=k)
    begin = np.cumsum(n) - n
    # twice the mean rank among the client's own examples, from 1: whole numbers, so that sums of ranks are exact
    twice = first + last + 2 - 2 * begin[owners]
    up = np.bincount(owners[positive], minlength=k)
    ranks = _sums(np.where(positive, twice, 0).astype(np.float64), owners, k)
    return _quotient(ranks - up * (up + 1.0), 2.0 * up * (n - up))


def auprc(scores: Floats, positive: NDArray[np.bool_], owners: Whole, k: int) -> Floats:
    """Average precision: the precision at each threshold, weighted by the recall that it adds.

    Not defined for clients without positive examples.
    """
    order = np.lexsort((-scores, owners))
    scores, positive, owners = scores[order], positive[order], owners[order]
    _, last = _groups(scores, owners)
    n = np.bincount(owners, minlength=k)
    up = np.bincount(owners[positive], minlength=k)
    found = np.cumsum(positive)[last] - (np.cumsum(up) - up)[owners]  # positives at the example's score or above
    named = last + 1 - (np.cumsum(n) - n)[owners]
    return _quotient(_sums(np.where(positive, found / named, 0.0), owners, k), up.astype(np.float64))


def brier(probabilities: Floats, positive: NDArray[np.bool_], owners: Whole, k: int) -> Floats:
    """The mean squared difference between the probability of class 1 and what came."""
    return _means((probabilities - positive) ** 2, owners, k)


def calibration(probabilities: Floats, positive: NDArray[np.bool_], owners: Whole, k: int) -> Floats:
    """Expected calibration error: |mean probability of class 1 - its frequency| of each bin, weighted by examples."""
    edges: Floats = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
    cells = owners * BINS + np.searchsorted(edges, probabilities)
    surplus = _sums(probabilities - positive, cells, k * BINS)
    off: Floats = np.asarray(np.abs(surplus), dtype=np.float64).reshape(k, BINS).sum(axis=1)
    return _quotient(off, np.bincount(owners, minlength=k).astype(np.float64))


def f1(predicted: Whole, targets: Whole, owners: Whole, k: int, classes: int) -> Floats:
    """F1 of class 1 of two classes, else its mean over the classes that occur in a client's data.

    Not defined for clients without class 1 (two classes), or without examples.
    """
    right, real, named = _counted(predicted, targets, owners, k, classes)
    each = _quotient(2 * right.astype(np.float64), (real + named).astype(np.float64))
    if classes == 2:
        return np.where(real[:, 1] > 0, each[:, 1], np.nan)
    return _quotient(np.where(real > 0, each, 0.0).sum(axis=1), (real > 0).sum(axis=1).astype(np.float64))


def balanced_accuracy(predicted: Whole, targets: Whole, owners: Whole, k: int, classes: int) -> Floats:
    """The mean, over the classes that occur in a client's data, of the share that is recognised.

    Not defined for clients of one class only, where it would be the accuracy.
    """
    right, real, _ = _counted(predicted, targets, owners, k, classes)
    occur = (real > 0).sum(axis=1)
    recalled = np.where(real > 0, right / np.maximum(real, 1), 0.0).sum(axis=1)
    return np.where(occur > 1, _quotient(recalled, occur.astype(np.float64)), np.nan)


def auroc_one_vs_rest(probabilities: Floats, targets: Whole, owners: Whole, k: int) -> Floats:
    """The mean of `auroc`, each class against the rest, over the classes that occur; ``probabilities: (n, C)``."""
    each = np.stack([auroc(column, targets == c, owners, k) for c, column in enumerate(probabilities.T)])
    defined = np.isfinite(each)
    return _quotient(np.where(defined, each, 0.0).sum(axis=0), defined.sum(axis=0).astype(np.float64))


def absolute_errors(predicted: Floats, targets: Floats, owners: Whole, k: int) -> Floats:
    """Mean absolute error by target; ``(n, t), (n, t) -> (K, t)``."""
    return _by_target(lambda y, z: _means(np.abs(y - z), owners, k), predicted, targets)


def root_squared_errors(predicted: Floats, targets: Floats, owners: Whole, k: int) -> Floats:
    """Root of the mean squared error by target; ``(n, t), (n, t) -> (K, t)``."""
    return _by_target(lambda y, z: np.sqrt(_means((y - z) ** 2, owners, k)), predicted, targets)


def determination(predicted: Floats, targets: Floats, owners: Whole, k: int) -> Floats:
    """R², the share of a target's variance that is explained; ``(n, t), (n, t) -> (K, t)``.

    Not defined where a client's target is constant.
    """

    def one(y: Floats, z: Floats) -> Floats:
        spread = _sums((z - _means(z, owners, k)[owners]) ** 2, owners, k)
        left = _quotient(_sums((y - z) ** 2, owners, k), spread)
        return np.where(constant(z, owners, k), np.nan, 1.0 - left)

    return _by_target(one, predicted, targets)


def constant(targets: Floats, owners: Whole, k: int) -> NDArray[np.bool_]:
    """Whether a client's values ``(n,)`` are all the same, ``(K,)``; True for clients without any."""
    low, high = np.full(k, np.inf), np.full(k, -np.inf)
    np.minimum.at(low, owners, targets)
    np.maximum.at(high, owners, targets)
    return low >= high


def _by_target(of: Callable[[Floats, Floats], Floats], predicted: Floats, targets: Floats) -> Floats:
    return np.stack([of(y, z) for y, z in zip(predicted.T, targets.T, strict=True)], axis=1)


def _counted(predicted: Whole, targets: Whole, owners: Whole, k: int, classes: int) -> tuple[Whole, Whole, Whole]:
    """How many examples of each class are right, real and named, ``(K, C)`` each."""

    def table(rows: Whole, cells: Whole) -> Whole:
        return np.bincount(rows * classes + cells, minlength=k * classes).reshape(k, classes)

    hit = predicted == targets
    return table(owners[hit], targets[hit]), table(owners, targets), table(owners, predicted)


def _groups(scores: Floats, owners: Whole) -> tuple[Whole, Whole]:
    """First and last place, ``(n,)`` each, of the examples of the same client that score the same, in sorted order."""
    new = np.ones(len(scores), dtype=bool)
    new[1:] = (scores[1:] != scores[:-1]) | (owners[1:] != owners[:-1])
    starts = np.flatnonzero(new)
    number = np.cumsum(new) - 1
    ends = np.append(starts[1:], len(scores)) - 1
    return starts[number], ends[number]


def _sums(values: Floats, owners: Whole, k: int) -> Floats:
    return np.bincount(owners, weights=values, minlength=k).astype(np.float64)


def _means(values: Floats, owners: Whole, k: int) -> Floats:
    return _quotient(_sums(values, owners, k), np.bincount(owners, minlength=k).astype(np.float64))


def _quotient(above: Floats, below: Floats) -> Floats:
    """``above / below``, NaN where ``below`` is 0."""
    found: Floats = np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)
    return found
