"""Metrics of many clients at once, computed from what was predicted for each example.

Examples lie flat, ``(n,)``, in any order; ``owners: (n,)`` names the client, 0 to K - 1, of each. Results are ``(K,)``,
NaN where the metric is not defined for a client's data. Nothing is computed client by client.

``weights: (n,)`` are numbers above 0: an example counts as so many. Without them all count once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

BINS = 10
"""Of the calibration error: equally wide, from 0 to 1, closed on the right."""


def auroc(scores: Floats, positive: NDArray[np.bool_], owners: Whole, k: int, weights: Floats | None = None) -> Floats:
    """The probability that a positive example scores higher than a negative one, where a tie counts one half.

    Not defined for clients of one class only.
    """
    order = np.lexsort((scores, owners))
    scores, positive, owners = scores[order], positive[order], owners[order]
    w = _ones(scores, weights)[order]
    first, last = _groups(scores, owners)
    negative = np.where(positive, 0.0, w)
    reached = _running(negative, owners, weights)  # negatives of the client up to here
    # twice the negatives that score lower, ties counted half: whole numbers, where all weigh 1
    beaten = reached[last] + reached[first] - negative[first]
    up, down = _sums(np.where(positive, w, 0.0), owners, k), _sums(negative, owners, k)
    return _quotient(_sums(np.where(positive, w * beaten, 0.0), owners, k), 2.0 * up * down)


def auprc(scores: Floats, positive: NDArray[np.bool_], owners: Whole, k: int, weights: Floats | None = None) -> Floats:
    """Average precision: the precision at each threshold, weighted by the recall that it adds.

    Not defined for clients without positive examples.
    """
    order = np.lexsort((-scores, owners))
    scores, positive, owners = scores[order], positive[order], owners[order]
    w = _ones(scores, weights)[order]
    _, last = _groups(scores, owners)
    real = np.where(positive, w, 0.0)
    found = _running(real, owners, weights)[last]  # positives at the example's score or above
    named = _running(w, owners, weights)[last]
    return _quotient(_sums(real * (found / named), owners, k), _sums(real, owners, k))


def brier(
    probabilities: Floats, positive: NDArray[np.bool_], owners: Whole, k: int, weights: Floats | None = None
) -> Floats:
    """The mean squared difference between the probability of class 1 and what came."""
    return _means((probabilities - positive) ** 2, owners, k, weights)


def calibration(
    probabilities: Floats, positive: NDArray[np.bool_], owners: Whole, k: int, weights: Floats | None = None
) -> Floats:
    """Expected calibration error: |mean probability of class 1 - its frequency| of each bin, weighted by examples."""
    edges: Floats = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
    cells = owners * BINS + np.searchsorted(edges, probabilities)
    surplus = _sums(_times(probabilities - positive, weights), cells, k * BINS)
    off: Floats = np.asarray(np.abs(surplus), dtype=np.float64).reshape(k, BINS).sum(axis=1)
    return _quotient(off, np.bincount(owners, weights, minlength=k).astype(np.float64))


def f1(predicted: Whole, targets: Whole, owners: Whole, k: int, classes: int, weights: Floats | None = None) -> Floats:
    """F1 of class 1 of two classes, else its mean over the classes that occur in a client's data.

    Not defined for clients without class 1 (two classes), or without examples.
    """
    right, real, named = _counted(predicted, targets, owners, k, classes, weights)
    each = _quotient(2 * right, real + named)
    if classes == 2:
        return np.where(real[:, 1] > 0, each[:, 1], np.nan)
    return _quotient(np.where(real > 0, each, 0.0).sum(axis=1), (real > 0).sum(axis=1).astype(np.float64))


def balanced_accuracy(
    predicted: Whole, targets: Whole, owners: Whole, k: int, classes: int, weights: Floats | None = None
) -> Floats:
    """The mean, over the classes that occur in a client's data, of the share that is recognised.

    Not defined for clients of one class only, where it would be the accuracy.
    """
    right, real, _ = _counted(predicted, targets, owners, k, classes, weights)
    occur = (real > 0).sum(axis=1)
    recalled = np.where(real > 0, right / np.where(real > 0, real, 1.0), 0.0).sum(axis=1)
    return np.where(occur > 1, _quotient(recalled, occur.astype(np.float64)), np.nan)


def auroc_one_vs_rest(
    probabilities: Floats, targets: Whole, owners: Whole, k: int, weights: Floats | None = None
) -> Floats:
    """The mean of `auroc`, each class against the rest, over the classes that occur; ``probabilities: (n, C)``."""
    each = np.stack([auroc(column, targets == c, owners, k, weights) for c, column in enumerate(probabilities.T)])
    defined = np.isfinite(each)
    return _quotient(np.where(defined, each, 0.0).sum(axis=0), defined.sum(axis=0).astype(np.float64))


def absolute_errors(predicted: Floats, targets: Floats, owners: Whole, k: int, weights: Floats | None = None) -> Floats:
    """Mean absolute error by target; ``(n, t), (n, t) -> (K, t)``."""
    return _by_target(lambda y, z: _means(np.abs(y - z), owners, k, weights), predicted, targets)


def root_squared_errors(
    predicted: Floats, targets: Floats, owners: Whole, k: int, weights: Floats | None = None
) -> Floats:
    """Root of the mean squared error by target; ``(n, t), (n, t) -> (K, t)``."""
    return _by_target(lambda y, z: np.sqrt(_means((y - z) ** 2, owners, k, weights)), predicted, targets)


def determination(predicted: Floats, targets: Floats, owners: Whole, k: int, weights: Floats | None = None) -> Floats:
    """R², the share of a target's variance that is explained; ``(n, t), (n, t) -> (K, t)``.

    Not defined where a client's target is constant.
    """

    def one(y: Floats, z: Floats) -> Floats:
        spread = _sums(_times((z - _means(z, owners, k, weights)[owners]) ** 2, weights), owners, k)
        left = _quotient(_sums(_times((y - z) ** 2, weights), owners, k), spread)
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


def _counted(
    predicted: Whole, targets: Whole, owners: Whole, k: int, classes: int, weights: Floats | None
) -> tuple[Floats, Floats, Floats]:
    """How many examples of each class are right, real and named, ``(K, C)`` each."""

    def table(cells: Whole, counted: Floats) -> Floats:
        found = np.bincount(owners * classes + cells, counted, minlength=k * classes)
        return found.astype(np.float64).reshape(k, classes)

    w = _ones(targets, weights)
    return table(targets, np.where(predicted == targets, w, 0.0)), table(targets, w), table(predicted, w)


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


def _means(values: Floats, owners: Whole, k: int, weights: Floats | None = None) -> Floats:
    whole = np.bincount(owners, weights, minlength=k).astype(np.float64)
    return _quotient(_sums(_times(values, weights), owners, k), whole)


def _times(values: Floats, weights: Floats | None) -> Floats:
    return values if weights is None else values * weights


def _ones(values: NDArray[np.generic], weights: Floats | None) -> Floats:
    """The weights of all examples, which are 1 where there are none."""
    return np.ones(len(values)) if weights is None else weights


def _running(values: Floats, owners: Whole, weights: Floats | None) -> Floats:
    """Sums of ``values: (n,)`` from a client's first example to each one; examples are sorted by client.

    Without weights sums are of whole numbers, and exact however many clients share them; else each client has its own,
    so that rounding errors of the others do no harm.
    """
    n = np.bincount(owners) if len(owners) else np.zeros(0, dtype=np.int64)
    if weights is not None:
        found: Floats = np.concatenate([np.cumsum(own) for own in np.split(values, np.cumsum(n)[:-1])] or [values])
        return found
    total = np.cumsum(values)
    before = np.concatenate([[0.0], total])[np.cumsum(n) - n]
    return np.asarray(total - before[owners], dtype=np.float64)


def _quotient(above: Floats, below: Floats) -> Floats:
    """``above / below``, NaN where ``below`` is 0."""
    found: Floats = np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)
    return found
