"""Weights of rows: how much each example counts in a client's losses and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.frames import cell_text, numbers
from coterie.federation.places import Origin

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


def read_weights(table: pd.DataFrame, column: str, where: Origin) -> Floats:
    """The weight of every row, ``(N,)``.

    Raises:
        CoterieError: a row without one, or one that is no number, not finite or negative; ``where`` says where.
    """
    cells = numbers(table[column])
    if cells.missing.any():
        raise CoterieError(
            f"{where(int(cells.missing.argmax()))}: the column {column!r} (federation.weights) is empty, as in "
            f"{int(cells.missing.sum())} of {len(table)} rows: give every row a weight, 0 where it is not to count."
        )
    if (bad := cells.wrong | ~(cells.values >= 0)).any():
        first = int(bad.argmax())
        raise CoterieError(
            f"{where(first)}: {cell_text(table[column].iloc[first])} in the column {column!r} (federation.weights) is "
            "no weight: give a finite number that is not negative."
        )
    return cells.values


def checked_weights(values: Sequence[Any], where: str) -> Floats:
    """Weights given in Python, ``(n,)``.

    Raises:
        CoterieError: one is no number, not finite or negative; ``where`` begins the message.
    """
    try:
        found = np.asarray([float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise CoterieError(f"{where} must be numbers, one an example.") from error
    if not (np.isfinite(found) & (found >= 0)).all():
        raise CoterieError(f"{where} must be finite numbers that are not negative.")
    return found


def training_means(weights: Floats, train: Sequence[Rows], names: Sequence[str]) -> Floats:
    """The mean weight of each client's training rows, ``(K,)``, by which its weights are divided.

    So a client's examples weigh 1 on average, whatever the unit of the weights, and its steps stay as long as without.

    Raises:
        CoterieError: the training rows of a client all weigh 0.
    """
    means = np.ones(len(train))
    for client, rows in enumerate(train):
        own = weights[rows]
        if len(own) and own.max() == 0:
            raise CoterieError(
                f"Client {names[client]!r} has no training row with a weight above 0, so nothing can be learnt from "
                "it: give it weights, or leave it out."
            )
        if len(own):  # equal weights become 1 exactly
            means[client] = own[0] if own.min() == own.max() else math.fsum(own / own.max()) / len(own) * own.max()
    return means


def by_position(weights: Floats, rows: Sequence[Rows], means: Floats) -> Tensor:
    """The weights of one split in the order of its positions, ``(n,)`` float64, each client's divided by its mean."""
    return torch.from_numpy(np.concatenate([weights[own] / mean for own, mean in zip(rows, means, strict=True)]))
