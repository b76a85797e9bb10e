"""Mini-batches of many clients side by side: ragged clients keep the batches they would have alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.training.keys import Keys, shuffled


@dataclass(frozen=True)
class Batch:
    """One step's batches of the first ``a`` rows (those that still have a step to do).

    ``positions: (a, B)`` into the clients' flat data, ``sizes: (a,)`` real examples in each batch (padding
    repeats the batch's first example) and ``weights: (a, B)``, which are 1/size for real examples and 0 for
    padding.
    """

    step: int
    positions: Tensor
    sizes: Tensor
    weights: Tensor

    @property
    def active(self) -> int:
        """How many rows still train."""
        return len(self.sizes)


class BatchPlan:
    """All batches of one local training of k clients.

    ``counts: (k,)`` examples per client and ``starts: (k,)`` their first flat position. Every example is used
    once per epoch, and the last batch of an epoch has what is left (unless ``drop_last`` leaves at least one
    batch, or it has fewer than ``smallest`` examples). Rows are served by falling number of steps: ``order: (k,)``
    says which row comes first.
    """

    def __init__(
        self,
        counts: NDArray[np.int64],
        starts: NDArray[np.int64],
        keys: Keys,
        batch_size: int,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        drop_last: bool = False,
        smallest: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if (epochs is None) == (steps is None):
            raise ValueError("give epochs or steps, not both or neither")
        batches = -(-counts // batch_size)
        if drop_last:
            batches = np.where(counts >= batch_size, counts // batch_size, batches)
        batches = np.where(counts - (batches - 1) * batch_size < smallest, batches - 1, batches)
        self.steps = np.full(len(counts), steps) if epochs is None else batches * epochs
        self.steps = np.where(batches > 0, self.steps, 0).astype(np.int64)
        self.order = np.argsort(-self.steps, kind="stable")
        self._sorted = self.steps[self.order]
        self._counts, self._starts, self._keys = counts[self.order], starts[self.order], keys[self.order]
        self._batches = np.maximum(batches[self.order], 1)
        self._batch_size = int(min(batch_size, counts.max(initial=1)))
        self._dtype, self._device = dtype, torch.device(device)
        self._first = np.cumsum(self._counts) - self._counts
        # every row's examples in the order of the epoch it has come to
        self._order = np.zeros(int(self._counts.sum()), dtype=np.int64)
        self._epoch = np.full(len(counts), -1)
        self._last: Tensor | None = None
        alike = len(counts) > 0 and bool((self._counts == self._counts[0]).all())
        self._table = self._order.reshape(len(counts), int(self._counts[0])) if alike else None  # the same memory

    @property
    def longest(self) -> int:
        """Steps of the client with the most."""
        return int(self._sorted[0]) if len(self._sorted) else 0

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.longest):
            yield self.batch(step)

    def batch(self, step: int) -> Batch:
        """The batches of one step, by falling number of steps."""
        return self._of(slice(0, int(np.searchsorted(-self._sorted, -step, side="left"))), step)

    def alone(self, row: int) -> Iterator[Batch]:
        """All batches of the row that comes at place ``row``, the same as in company, without padding."""
        for step in range(int(self._sorted[row])):
            yield self._of(slice(row, row + 1), step)

    def _of(self, rows: slice, step: int) -> Batch:
        active = rows.stop - rows.start
        epoch, number = np.divmod(step, self._batches[rows])
        self._shuffle(rows, epoch)
        if self._table is not None:
            return self._alike(rows, step, int(number[0]))
        begin = number * self._batch_size
        size = np.minimum(self._batch_size, self._counts[rows] - begin)
        width = int(size.max())
        offset = np.arange(width)
        real = offset < size[:, None]
        even = bool(real.all())
        within = begin[:, None] + (offset if even else np.where(real, offset, 0))
        positions = self._order[self._first[rows, None] + within] + self._starts[rows, None]
        weights = self._even(active, width) if even else self._tensor(real / size[:, None])
        return Batch(
            step,
            torch.from_numpy(positions).to(self._device),
            torch.from_numpy(size).to(self._device),
            weights,
        )

    def _alike(self, rows: slice, step: int, number: int) -> Batch:
        """The batches of clients that all have as many examples: a column of a table."""
        assert self._table is not None
        begin = number * self._batch_size
        columns = self._table[rows, begin : begin + self._batch_size]
        active, width = columns.shape
        positions = torch.from_numpy(columns + self._starts[rows, None]).to(self._device)
        sizes = torch.full((active,), width, dtype=torch.int64, device=self._device)
        return Batch(step, positions, sizes, self._even(active, width))

    def _even(self, active: int, width: int) -> Tensor:
        """The weights of full batches, which most steps share."""
        if self._last is None or self._last.shape != (active, width):
            self._last = self._tensor(np.full((active, width), 1.0 / width))
        return self._last

    def _tensor(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(values).to(self._device, self._dtype)

    def _shuffle(self, among: slice, epochs: NDArray[np.int64]) -> None:
        """Shuffle the examples of those rows that have come to another epoch."""
        moved = np.flatnonzero(self._epoch[among] != epochs)
        if len(moved) == 0:
            return
        rows, epoch = moved + among.start, epochs[moved]
        counts = self._counts[rows]
        begin = np.cumsum(counts) - counts
        places = np.repeat(self._first[rows] - begin, counts) + np.arange(counts.sum())
        self._order[places] = shuffled(self._keys[rows], counts, epoch)
        self._epoch[rows] = epoch


class SequentialPlan(BatchPlan):
    """Every example once, in stored order: for losses, full gradients and evaluation."""

    def __init__(
        self,
        counts: NDArray[np.int64],
        starts: NDArray[np.int64],
        batch_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        keys = np.zeros(len(counts), dtype=np.uint64)
        super().__init__(counts, starts, keys, batch_size, epochs=1, dtype=dtype, device=device)
        self._order[:] = np.arange(int(counts.sum())) - np.repeat(self._first, self._counts)
        self._epoch[:] = 0
