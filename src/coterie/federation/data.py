"""One split of k clients: flat tensors with offsets, so that nothing is copied or padded per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import CoterieError


@dataclass(frozen=True, eq=False)
class Normal:
    """Values ``x`` are used as ``(x - mean) / std``, evaluated batch by batch so that uint8 images stay small.

    Attributes:
        mean, std: of one shape that broadcasts against one input, such as ``(channels, 1, 1)``, or one target.
    """

    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised values, computed in place."""
        return x.sub_(self.mean.to(x.dtype)).div_(self.std.to(x.dtype))

    def undone(self, x: Tensor) -> Tensor:
        """Normalised values as they were."""
        return x * self.std.to(x) + self.mean.to(x)

    def to(self, device: torch.device | str) -> Normal:
        """The same on ``device``."""
        return Normal(self.mean.to(device), self.std.to(device))


@dataclass(frozen=True, eq=False)
class ClientData:
    """One split (train, validation or test) of k clients.

    Client ``i`` owns the *positions* ``offsets[i]:offsets[i + 1]``. A position is a row of ``inputs`` and
    ``targets`` or, where ``index`` is given, an entry of ``index`` which names that row. So several splits
    and many clients can share one tensor.

    Attributes:
        inputs: ``(N, *feature_shape)``, uint8 (kept so until used) or floating point.
        targets: ``(N,)`` int64 classes, or ``(N, t)`` floating point for regression.
        offsets: ``(k + 1,)`` int64, non-decreasing.
        index: ``(offsets[-1],)`` int64, position -> row; ``None`` stands for the identity.
        scale: factor applied to uint8 inputs when they are used (1/255 for images).
        normal: applied to all inputs when they are used, after ``scale``; ``None`` leaves them.
        weights: ``(offsets[-1],)`` float64 by position, at least 0: how much each example counts in losses and
            metrics, of mean 1 over a client's training examples; ``None`` where all count alike.
        target_normal: of a regression, applied to targets when they are used; models learn and predict normalised
            targets then, and ``targets`` and metrics keep the unit that they came in.
        blocks: ``(N,)`` int64: rows of one number, in whichever split, belong together and stay together where the
            split is drawn anew; ``None`` where each row stands for itself.
        order: ``(N,)`` int64, larger the later a row was taken; ``None`` where time plays no part.

    Raises:
        CoterieError: lengths, types or offsets do not fit together.
    """

    inputs: Tensor
    targets: Tensor
    offsets: Tensor
    index: Tensor | None = None
    scale: float = 1.0
    normal: Normal | None = None
    weights: Tensor | None = None
    target_normal: Normal | None = None
    blocks: Tensor | None = None
    order: Tensor | None = None

    def __post_init__(self) -> None:
        offsets, rows = self.offsets, len(self.inputs)
        if self.inputs.dtype != torch.uint8 and not self.inputs.is_floating_point():
            raise CoterieError(f"Inputs must be uint8 or floating point, not {self.inputs.dtype}: convert them first.")
        if self.targets.dtype != torch.int64 and not self.targets.is_floating_point():
            raise CoterieError(
                f"Targets must be int64 classes or floating point, not {self.targets.dtype}: convert them first."
            )
        if len(self.targets) != rows:
            raise CoterieError(f"There are {rows} inputs but {len(self.targets)} targets: give one target an input.")
        if offsets.dtype != torch.int64 or offsets.dim() != 1 or len(offsets) == 0:
            raise CoterieError("Offsets must be one int64 tensor of k + 1 values.")
        if int(offsets[0]) < 0 or bool((offsets.diff() < 0).any()):
            raise CoterieError("Offsets must start at 0 or above and never decrease.")
        available = rows if self.index is None else len(self.index)
        if int(offsets[-1]) > available:
            raise CoterieError(f"Offsets reach position {int(offsets[-1])} but there are only {available} examples.")
        if self.index is not None and self.index.dtype != torch.int64:
            raise CoterieError(f"The index must be int64, not {self.index.dtype}.")
        if self.weights is not None and (self.weights.dtype != torch.float64 or self.weights.ndim != 1):
            raise CoterieError("Weights must be one float64 number an example.")
        if self.weights is not None and len(self.weights) < int(offsets[-1]):
            raise CoterieError(f"There are {int(offsets[-1])} examples but {len(self.weights)} weights: give one each.")
        for what, numbers in (("blocks", self.blocks), ("order", self.order)):
            if numbers is not None and (numbers.dtype != torch.int64 or numbers.shape != (rows,)):
                raise CoterieError(f"The {what} must be one int64 tensor with a number for each of the {rows} inputs.")

    @classmethod
    def from_clients(cls, inputs: Sequence[Tensor], targets: Sequence[Tensor], scale: float = 1.0) -> ClientData:
        """Join separate tensors, one pair ``(n_i, *feature_shape)`` and ``(n_i, ...)`` a client.

        Raises:
            CoterieError: there is no client, or a client's inputs and targets differ in number.
        """
        if not inputs or len(inputs) != len(targets):
            raise CoterieError(
                f"There are inputs of {len(inputs)} clients and targets of {len(targets)}: give both for at least one."
            )
        for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            if len(x) != len(y):
                raise CoterieError(f"Client {i} has {len(x)} inputs but {len(y)} targets: give one target an input.")
        counts = torch.tensor([0, *(len(x) for x in inputs)], dtype=torch.int64)
        return cls(torch.cat(list(inputs)), torch.cat(list(targets)), counts.cumsum(0), scale=scale)

    @property
    def k(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def n(self) -> Tensor:
        """Number of examples of each client, ``(k,)`` int64."""
        return self.offsets.diff()

    @property
    def sizes(self) -> Tensor:
        """What the examples of each client weigh together, ``(k,)`` float64: their number, where all count alike."""
        if self.weights is None:
            return self.n.double()
        own = self.weights[int(self.offsets[0]) : int(self.offsets[-1])]
        return own.new_zeros(self.k).index_add_(0, self.owners(), own)

    @property
    def own_weights(self) -> NDArray[np.float64] | None:
        """The weights of the clients' examples, ``(total,)`` flat over the clients; ``None`` where all count alike."""
        if self.weights is None:
            return None
        return np.asarray(self.weights[int(self.offsets[0]) : int(self.offsets[-1])].cpu(), dtype=np.float64)

    @property
    def total(self) -> int:
        """Number of examples of all clients together."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.inputs.shape[1:])

    def rows(self, positions: Tensor) -> Tensor:
        """Rows of ``inputs`` and ``targets`` that these positions stand for; same shape as ``positions``."""
        return positions if self.index is None else self.index[positions]

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Examples at ``positions`` (any shape).

        Returns:
            Inputs ``(*positions.shape, *feature_shape)`` and targets ``(*positions.shape, ...)``. Inputs and
            real-valued targets are normalised and have torch's default floating point type; classes stay int64.
        """
        flat = self.rows(positions.reshape(-1))
        shape = positions.shape
        # index_select copies whole rows, several times faster than advanced indexing of uint8 images
        x = self._float(self.inputs.index_select(0, flat))
        y = self.targets.index_select(0, flat)
        if self.target_normal is not None:
            y = self.target_normal(y.double())
        if y.is_floating_point():
            y = y.to(torch.get_default_dtype())
        return x.view(*shape, *self.inputs.shape[1:]), y.view(*shape, *self.targets.shape[1:])

    def weighed(self, positions: Tensor, shares: Tensor) -> Tensor:
        """``shares`` times the weights of the examples at ``positions``, both of one shape; unchanged without any."""
        return shares if self.weights is None else shares * self.weights[positions].to(shares)

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """All examples of client ``i``: float inputs ``(n_i, *feature_shape)`` and targets ``(n_i, ...)``."""
        start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
        return self.batch(torch.arange(start, stop, device=self.offsets.device))

    def owners(self) -> Tensor:
        """Which client owns each position from ``offsets[0]`` to ``offsets[-1]``, ``(total,)`` int64."""
        return torch.repeat_interleave(torch.arange(self.k, device=self.offsets.device), self.n)

    def select(self, clients: Sequence[int]) -> ClientData:
        """The same split for these clients, in this order.

        ``inputs`` are never copied: a contiguous range is a view, anything else an index.

        Raises:
            IndexError: a client number outside ``0 .. k - 1``.
        """
        chosen, k = [int(c) for c in clients], self.k
        for c in chosen:
            if not 0 <= c < k:
                raise IndexError(f"client {c} is not one of 0 .. {k - 1}")
        if chosen and chosen == list(range(chosen[0], chosen[0] + len(chosen))):
            offsets = self.offsets[chosen[0] : chosen[-1] + 2]
            start, stop = int(offsets[0]), int(offsets[-1])
            weights = None if self.weights is None else self.weights[start:stop]
            if self.index is None:
                inputs, targets = self.inputs[start:stop], self.targets[start:stop]
                blocks, order = (None if of is None else of[start:stop] for of in (self.blocks, self.order))
                return replace(
                    self,
                    inputs=inputs,
                    targets=targets,
                    offsets=offsets - start,
                    weights=weights,
                    blocks=blocks,
                    order=order,
                )
            return replace(self, offsets=offsets - start, index=self.index[start:stop], weights=weights)
        rows = torch.tensor(chosen, dtype=torch.int64, device=self.offsets.device)
        sizes = self.offsets[rows + 1] - self.offsets[rows]  # of the chosen alone: there may be many others
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        shift = torch.repeat_interleave(self.offsets[rows] - offsets[:-1], sizes)
        positions = torch.arange(len(shift), device=shift.device) + shift
        weights = None if self.weights is None else self.weights[positions]
        return replace(self, offsets=offsets, index=self.rows(positions), weights=weights)

    def to(self, device: torch.device | str) -> ClientData:
        """The same split with every tensor on ``device``."""
        return replace(
            self,
            inputs=self.inputs.to(device),
            targets=self.targets.to(device),
            offsets=self.offsets.to(device),
            index=None if self.index is None else self.index.to(device),
            normal=None if self.normal is None else self.normal.to(device),
            weights=None if self.weights is None else self.weights.to(device),
            blocks=None if self.blocks is None else self.blocks.to(device),
            order=None if self.order is None else self.order.to(device),
            target_normal=None if self.target_normal is None else self.target_normal.to(device),
        )

    def _float(self, x: Tensor) -> Tensor:
        dtype = torch.get_default_dtype()
        # x is the caller's own copy of some rows, so everything may be done in place
        used = x.to(dtype).mul_(self.scale) if x.dtype == torch.uint8 else x.to(dtype)
        return used if self.normal is None else self.normal(used)
