"""Numbers in three: how many, their mean, and how far they lie from it; all that the guard needs of paired differences.

A real site sends these instead of what its models lose on single examples, and the server judges by them as it would
by the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Of some numbers.

    Attributes:
        n: how many.
        mean: their mean; 0 of none.
        squares: the sum of their squared deviations from it.
    """

    n: int
    mean: float
    squares: float

    @classmethod
    def of(cls, values: Floats) -> Moments:
        """Of ``values: (n,)``."""
        if not len(values):
            return cls(0, 0.0, 0.0)
        mean = values.mean()
        return cls(len(values), float(mean), float(((values - mean) ** 2).sum()))


def merged(parts: Sequence[Moments]) -> Moments:
    """Of the numbers of all ``parts`` together (Chan, Golub and LeVeque 1983)."""
    n = sum(part.n for part in parts)
    if n == 0:
        return Moments(0, 0.0, 0.0)
    mean = sum(part.n * part.mean for part in parts) / n
    return Moments(n, mean, sum(part.squares + part.n * (part.mean - mean) ** 2 for part in parts))
