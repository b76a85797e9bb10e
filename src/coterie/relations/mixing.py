"""How a client weighs models that it has received: by what they gain, or by a gradient through a softmax."""

import torch
from torch import Tensor


def benefits(own_loss: Tensor, losses: Tensor, distances: Tensor, size: Tensor) -> Tensor:
    """What each received model gains, per unit of distance from the client's own: ``(L(w) - L(w_n)) / |w_n - w|``.

    Args:
        own_loss: ``(k,)`` losses of the clients' own models.
        losses: ``(k, m)`` losses of the received models.
        distances: ``(k, m)`` distances between the received models and the own.
        size: ``(k,)`` norms of the own models; what is nearer than a millionth of that is the same model.

    Returns:
        ``(k, m)`` float64; 0 where a model is the client's own or where anything is not finite.

    Source: Zhang et al., ICLR 2021 (FedFomo), Equation 4; the guard is ours.
    """
    gained = own_loss.to(torch.float64).unsqueeze(1) - losses
    apart = (distances > 1e-6 * size.unsqueeze(1)) & (distances > 0)
    found = gained / torch.where(apart, distances, 1.0)
    return torch.where(apart & torch.isfinite(found), found, 0.0)


def positive_shares(values: Tensor) -> Tensor:
    """``max(a, 0) / sum max(a, 0)`` of each row ``(k, m)``; a row without positive entries gives zeros."""
    positive = values.clamp(min=0.0)
    total = positive.sum(dim=1, keepdim=True)
    return positive / torch.where(total > 0, total, 1.0)


def softmax_slope(pi: Tensor, slope: Tensor) -> Tensor:
    """dL/dalpha of weights ``pi = softmax(alpha)``, from ``slope = dL/dpi``; both ``(k, m)``."""
    return pi * (slope - (pi * slope).sum(dim=1, keepdim=True))


def adam(value: Tensor, slope: Tensor, moments: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """One step of Adam for numbers that each have a history of their own.

    Args:
        value, slope: numbers and their derivatives, of one shape.
        moments: ``(*shape, 3)`` running means of the slope and of its square, and steps so far; zeros at first.
        lr: the learning rate.

    Returns:
        The new numbers and moments; the arguments stay.

    Source: Kingma and Ba, ICLR 2015, with the constants 0.9, 0.999 and 1e-8.
    """
    mean = 0.9 * moments[..., 0] + 0.1 * slope
    square = 0.999 * moments[..., 1] + 0.001 * slope.square()
    steps = moments[..., 2] + 1
    moved = lr * (mean / (1 - 0.9**steps)) / ((square / (1 - 0.999**steps)).sqrt() + 1e-8)
    return value - moved, torch.stack([mean, square, steps], dim=-1)
