"""Who gained and who lost: each client's result against what it reaches alone (LOCAL).

All functions compare client by client, since these numbers cannot be computed from averages. LOCAL must
have been run with the same splits, seed, initial weights and budget. R-Acc, PTR and R-MAE are those of
FEDORA (Wu et al., KDD 2023), the individual gain is that of PGFed (Luo et al., ICCV 2023). A client whose
value is not finite on either side is left out.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from coterie.errors import CoterieError


class Relative(NamedTuple):
    """A mean of ratios, and how many clients had to be left out of it because LOCAL's value is zero."""

    value: float
    left_out: int


def individual_gain(accuracy: ArrayLike, local: ArrayLike) -> NDArray[np.float64]:
    """Return each client's gain ``100 (Acc_k - Acc_k(LOCAL))`` in percentage points, shape ``(K,)``.

    Report its mean and its population standard deviation (``ddof=0``) over clients.
    """
    ours, alone = np.asarray(accuracy, dtype=np.float64), np.asarray(local, dtype=np.float64)
    return np.asarray(100.0 * (ours - alone))


def r_acc(accuracy: ArrayLike, local: ArrayLike) -> Relative:
    """Return R-Acc, the mean over clients of ``(Acc_k - Acc_k(LOCAL)) / Acc_k(LOCAL)``; arrays ``(K,)``.

    It is the mean of the ratios, not the ratio of the means. Clients with ``Acc_k(LOCAL) = 0`` are left out
    and counted.
    """
    ours, alone = _both_finite(accuracy, local)
    return _mean_ratio(ours - alone, alone)


def r_mae(mae: ArrayLike, local: ArrayLike) -> Relative:
    """Return R-MAE, the mean over clients of ``(MAE_k(LOCAL) - MAE_k) / MAE_k(LOCAL)``; arrays ``(K,)``.

    The sign is turned against R-Acc, so that here too larger is better. Clients with ``MAE_k(LOCAL) = 0``
    are left out and counted.
    """
    ours, alone = _both_finite(mae, local)
    return _mean_ratio(alone - ours, alone)


def ptr(accuracy: ArrayLike, local: ArrayLike) -> float:
    """Return the positive transfer ratio, the share of the K clients with ``Acc_k >= Acc_k(LOCAL)``.

    A tie counts as positive, so that LOCAL itself has 1. NaN when there is no client.
    """
    ours, alone = _both_finite(accuracy, local)
    return float((ours >= alone).mean()) if ours.size else math.nan


def ptr_mae(mae: ArrayLike, local: ArrayLike) -> float:
    """Return the positive transfer ratio of an error, the share of clients with ``MAE_k <= MAE_k(LOCAL)``."""
    ours, alone = _both_finite(mae, local)
    return float((ours <= alone).mean()) if ours.size else math.nan


def align(values: "pd.Series[float]", local: "pd.Series[float]") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bring two series indexed by client name into the same order, that of ``values``, as arrays ``(K,)``.

    Raises:
        CoterieError: the two do not name the same clients, or name one twice.

    """
    for series in (values, local):
        if not series.index.is_unique:
            twice = series.index[series.index.duplicated()][0]
            raise CoterieError(
                f"Client {twice!r} has more than one result in the same round; "
                "give each system of a run its own variant."
            )
    strangers = values.index.symmetric_difference(local.index)
    if len(strangers):
        raise CoterieError(
            f"Cannot compare with LOCAL: client {strangers[0]!r} has a result on one side only "
            f"({len(strangers)} such clients); run LOCAL on the same federation."
        )
    ours, alone = values.to_numpy(), local.loc[values.index].to_numpy()
    return np.asarray(ours, dtype=np.float64), np.asarray(alone, dtype=np.float64)


def _both_finite(values: ArrayLike, local: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the entries of both arrays ``(K,)`` where both are finite."""
    ours, alone = np.asarray(values, dtype=np.float64), np.asarray(local, dtype=np.float64)
    if ours.shape != alone.shape:
        raise ValueError(f"cannot compare {ours.shape} values with {alone.shape} of LOCAL")
    kept = np.isfinite(ours) & np.isfinite(alone)
    return ours[kept], alone[kept]


def _mean_ratio(differences: NDArray[np.float64], alone: NDArray[np.float64]) -> Relative:
    """Return the mean of ``differences / alone`` where ``alone`` is not zero."""
    kept = alone != 0
    value = float((differences[kept] / alone[kept]).mean()) if kept.any() else math.nan
    return Relative(value, int((~kept).sum()))
