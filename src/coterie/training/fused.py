"""What becomes of the gradients of a backward pass: they are kept, or SGD takes its step at once, in the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.training.optimiser import Optimiser, Tensors


class Gradients:
    """Keeps the gradients of ``names``, each ``(a, *shape)``."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.found: dict[str, Tensor] = {}

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Keep ``left @ right``."""
        self.found[name] = torch.bmm(left, right)

    def plain(self, name: str, gradient: Tensor) -> None:
        """Keep ``gradient``."""
        self.found[name] = gradient


class FusedStep:
    """One SGD step of the rows ``theta: (a, *shape)`` by tensor, taken by the backward pass (see ``Sinks``).

    Without momentum the gradient is not even formed: ``W <- W - lr dY^T X`` is one product in place, and weight decay
    and the pull are linear in W too. With momentum the product goes into the momentum. Every row is stepped as
    :class:`Optimiser` would step it, but for rounding.
    """

    def __init__(self, optimiser: Optimiser, theta: Tensors, names: frozenset[str]) -> None:
        self.optimiser, self.theta, self.names = optimiser, theta, names

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Step the weights ``name``, whose gradient is ``left @ right``: ``(a, out, B)`` and ``(a, B, in)``."""
        theta, settings = self.theta[name], self.optimiser.settings
        if left.dtype != theta.dtype:  # in mixed precision the product is one of the lower type
            self.plain(name, torch.bmm(left, right))
        elif settings.momentum:
            direction = self.optimiser.buffer("momentum", name, theta)
            self._along(name, theta, direction.baddbmm_(left, right, beta=settings.momentum))
        else:
            theta.baddbmm_(left, right, beta=self._shrunk(name, theta), alpha=-self.optimiser.lr)

    def plain(self, name: str, gradient: Tensor) -> None:
        """Step the tensor ``name`` by its ``gradient: (a, *shape)``, of its own type or of a lower one."""
        theta, settings = self.theta[name], self.optimiser.settings
        if settings.momentum:
            direction = self.optimiser.buffer("momentum", name, theta)
            self._along(name, theta, direction.mul_(settings.momentum).add_(gradient))
        else:
            beta = self._shrunk(name, theta)
            shrunk = theta if beta == 1.0 else theta.mul_(beta)
            shrunk.sub_(gradient, alpha=self.optimiser.lr)

    def _shrunk(self, name: str, theta: Tensor) -> float:
        """Pull ``theta``, in place; what it is then still to be multiplied with is returned.

        ``(1 - lr wd - lr s) theta + lr s anchor`` is ``beta`` times a step of ``lr s / beta`` towards the anchor, for
        ``beta = 1 - lr wd``.
        """
        optimiser = self.optimiser
        beta = 1.0 - optimiser.lr * optimiser.settings.weight_decay
        if optimiser.pull is not None:
            theta.lerp_(optimiser.pull.anchor[name][: len(theta)], optimiser.pull.column(theta) * (optimiser.lr / beta))
        return beta

    def _along(self, name: str, theta: Tensor, direction: Tensor) -> None:
        """Step ``theta`` along its momentum, which takes up the weight decay and a pull inside the gradient."""
        optimiser = self.optimiser
        if optimiser.settings.weight_decay:
            direction.add_(theta, alpha=optimiser.settings.weight_decay)
        if optimiser.pull is not None:
            anchor, column = optimiser.pull.anchor[name][: len(theta)], optimiser.pull.column(theta)
            if optimiser.pull.place == "gradient":
                direction.addcmul_(optimiser.difference(theta, anchor), column)
            else:
                theta.lerp_(anchor, column * optimiser.lr)
        theta.add_(direction, alpha=-optimiser.lr)
