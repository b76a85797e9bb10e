"""Losses that count each class of a client alike, however many examples it has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def balancing_offsets(counts: Tensor, gamma: float) -> Tensor:
    """``gamma log n_kc``, to be added to the outputs before the softmax; minus infinity for classes without examples.

    Args:
        counts: ``(k, C)`` examples of each class, on the whole training set.
        gamma: 0 leaves the softmax as it is.

    Returns:
        ``(k, C)`` float64.

    Source: the balanced softmax of Ren et al., NeurIPS 2020, as in Chen & Chao, ICLR 2022 (FedRoD).
    """
    logs = gamma * counts.double().clamp(min=1.0).log()
    return torch.where(counts > 0, logs, -torch.inf) if gamma else logs


def balanced_cross_entropy(offsets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy of outputs ``(k, B, C)`` plus ``offsets: (k, C)``, for targets ``(k, B)``, ``(k, B)``."""

    def objective(outputs: Tensor, targets: Tensor) -> Tensor:
        shifted = outputs + offsets.to(outputs).unsqueeze(1)
        return functional.cross_entropy(shifted.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)

    return objective
