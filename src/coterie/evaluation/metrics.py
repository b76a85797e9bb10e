"""Numbers that stand for all clients of a federation at once.

Arrays have shape ``(K,)``, one value a client. A value that is not finite means "this client has none": it
is left out. Where nothing is left, the result is NaN.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

SAME = 1e-12
"""Relative difference up to which two means over clients are the same but for rounding."""


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    """Return the finite values among ``values`` ``(K,)``, in their order."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def macro(values: ArrayLike) -> float:
    """Return the mean over clients of ``values`` ``(K,)``; every client counts once, whatever its size."""
    kept = _finite(values)
    return float(kept.mean()) if kept.size else math.nan


def weighted(values: ArrayLike, n: ArrayLike) -> float:
    """Return the mean of ``values`` ``(K,)`` weighted by the clients' numbers of examples ``n`` ``(K,)``.

    For an accuracy this is the share of all examples that are classified correctly.
    """
    array, sizes = np.asarray(values, dtype=np.float64), np.asarray(n, dtype=np.float64)
    kept = np.isfinite(array)
    total = sizes[kept].sum()
    return float((array[kept] * sizes[kept]).sum() / total) if total > 0 else math.nan


def worst(values: ArrayLike, *, larger_is_better: bool = True) -> float:
    """Return the value of the client that fares worst, given ``values`` ``(K,)``."""
    kept = _finite(values)
    if not kept.size:
        return math.nan
    return float(kept.min() if larger_is_better else kept.max())


def worst_decile(values: ArrayLike, *, larger_is_better: bool = True) -> float:
    """Return the mean over the ``ceil(K / 10)`` clients that fare worst, given ``values`` ``(K,)``."""
    ascending = np.sort(_finite(values))
    if not ascending.size:
        return math.nan
    count = -(-ascending.size // 10)  # the ceiling, in whole numbers
    return float((ascending[:count] if larger_is_better else ascending[-count:]).mean())


def rounds_to_target(
    rounds: ArrayLike, values: ArrayLike, target: float, *, larger_is_better: bool = True
) -> int | None:
    """Return the first evaluated round that reaches a target, or None when none does.

    Args:
        rounds: the evaluated rounds, ``(R,)``, in any order.
        values: the mean over clients at each of them, ``(R,)``.
        target: the value to reach; equality counts.
        larger_is_better: False for errors, where the value must fall to the target.

    """
    series = np.asarray(values, dtype=np.float64)
    slack = SAME * max(1.0, abs(target))  # a mean of accuracies may miss 0.7 by rounding alone
    reached = series >= target - slack if larger_is_better else series <= target + slack
    hits = np.asarray(rounds)[reached]
    return int(hits.min()) if hits.size else None
