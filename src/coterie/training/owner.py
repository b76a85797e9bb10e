"""Adam for rows of Theta that step at different times, each with its own count of steps."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.models import Models

BETAS, TINY = (0.9, 0.999), 1e-8


def adam_rows(
    theta: Models, gradient: Models, mean: Models, square: Models, steps: Tensor, active: Tensor, lr: float
) -> tuple[Models, Models, Models]:
    """One step of ``torch.optim.Adam`` for the rows that are ``active: (k,)``; the others stay as they are.

    Parameters
    ----------
    theta, gradient, mean, square : Models
        ``(k,)`` models, their gradients, and the running means of gradients and of squared gradients.
    steps : Tensor
        ``(k,)`` steps of each row, this one included.
    lr : float
        The learning rate.

    Returns
    -------
    theta, mean, square : Models
        Fresh models; the arguments stay.
    """
    first, second = BETAS
    new_theta, new_mean, new_square = theta.clone(), mean.clone(), square.clone()
    for models in (new_theta, new_mean, new_square):
        models.materialise()
    count = steps.clamp(min=1).double()
    for name, g in gradient.parameters():
        column = [-1, *[1] * (g.ndim - 1)]
        on = active.to(g.device).view(column)
        one, two = ((1.0 - beta**count).to(g).view(column) for beta in BETAS)
        m = torch.lerp(mean.tensors[name], g, 1.0 - first)
        v = second * square.tensors[name] + (1.0 - second) * g.square()
        moved = theta.tensors[name] - lr * (m / one) / ((v / two).sqrt() + TINY)
        for target, value in ((new_theta, moved), (new_mean, m), (new_square, v)):
            target.tensors[name] = torch.where(on, value, target.tensors[name])
    return new_theta, new_mean, new_square
