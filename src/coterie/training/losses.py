"""Losses per example: the mean over a client's examples is taken by the weights of its batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Objective = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """``outputs: (k, B, C)`` and classes ``targets: (k, B)`` -> ``(k, B)``."""
    flat = outputs.reshape(-1, outputs.shape[-1])
    return functional.cross_entropy(flat, targets.reshape(-1), reduction="none").view(targets.shape)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """``outputs: (k, B, t)``, ``targets: (k, B, t)`` or ``(k, B)`` -> ``(k, B)``, the mean over t."""
    return (outputs - targets.reshape(outputs.shape)).square().mean(-1)


def negative_log_probability(probabilities: Tensor, targets: Tensor) -> Tensor:
    """``probabilities: (k, B, C)`` and classes ``(k, B)`` -> ``(k, B)``; for mixtures of predictions."""
    chosen = probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -torch.log(chosen.clamp(min=torch.finfo(chosen.dtype).tiny))


OF_ANY_ROWS: tuple[Objective, ...] = (cross_entropy, squared_error)
"""Losses that may be asked for some of the rows only; a method's own may know all k of them."""


def slope_of(objective: Objective, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the weighted losses by ``outputs: (k, B, C)``; the cross-entropy's is ``w (softmax(z) - y)``."""
    if objective is cross_entropy and outputs.ndim == 3:
        slope = outputs.softmax(-1)
        places = targets.unsqueeze(-1)
        slope.scatter_add_(-1, places, slope.new_full((), -1.0).expand(places.shape))
        return slope.mul_(weights.unsqueeze(-1))
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad((objective(leaf, targets) * weights).sum(), leaf)
    return slope


def objective_of(task: str) -> Objective:
    """The loss of a task, ``classification`` or ``regression``."""
    return cross_entropy if task == "classification" else squared_error
