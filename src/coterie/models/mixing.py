"""Weights by which models are mixed where the matrix of all weights would be too large to write out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

ENTRIES = 1 << 22
"""Entries of a K x m slice of models that are worked on at a time (16 MiB in float32)."""


class Mixing(ABC):
    """A ``(r, K)`` matrix known by what it does; rows sum to one. ``Models.mixed`` takes it in place of a tensor."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """``(r, K)``."""

    @abstractmethod
    def product(self, columns: Tensor, out: Tensor | None = None) -> Tensor:
        """The matrix times ``columns: (K, m)``, ``(r, m)`` in their dtype; ``out`` must not share their storage."""

    @abstractmethod
    def greatest(self, columns: Tensor) -> Tensor:
        """For each row the largest of ``columns: (K, m)`` over the models that it mixes, ``(r, m)``."""

    def __getitem__(self, rows: Tensor) -> Mixing:
        """Some rows of the matrix."""
        return _Rows(self, rows)


class _Rows(Mixing):
    """Rows of a mixing that is only known as a whole."""

    def __init__(self, whole: Mixing, rows: Tensor) -> None:
        self.whole, self.rows = whole, rows

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.whole.shape[1]

    def product(self, columns: Tensor, out: Tensor | None = None) -> Tensor:
        target = columns.new_empty(len(self.rows), columns.shape[1]) if out is None else out
        rows = self.rows.to(columns.device)
        for part in slices(columns):
            target[:, part] = self.whole.product(columns[:, part])[rows]
        return target

    def greatest(self, columns: Tensor) -> Tensor:
        return self.whole.greatest(columns)[self.rows.to(columns.device)]


def slices(columns: Tensor, entries: int = ENTRIES, *, rows: int | None = None) -> Iterator[slice]:
    """Slices of the second axis of ``columns: (K, m)`` with at most ``entries`` entries in K, or in ``rows``, rows."""
    width = max(1, entries // max(1, len(columns) if rows is None else rows))
    return (slice(start, start + width) for start in range(0, columns.shape[1], width))


def as_weights(matrix: Tensor | Mixing, device: torch.device) -> Tensor | Mixing:
    """Weights ``(r, k)`` where the models lie; a vector ``(k,)`` is one row."""
    if isinstance(matrix, Mixing):
        return matrix
    weights = torch.as_tensor(matrix, device=device)
    return weights.unsqueeze(0) if weights.ndim == 1 else weights
