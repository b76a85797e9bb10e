"""Tiny federations and models whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import ModelSpec


class Location(nn.Module):
    """Predicts its own position: with d targets, F_k(theta) = ||theta - mean||^2 / d + constant."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        """The position, whatever ``x: (B, ...)`` is: ``(B, d)``."""
        return 0.0 * x.flatten(1).sum(1, keepdim=True) + self.position


class Blind(nn.Module):
    """Parameters without influence: the gradient of every loss is zero."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Zeros ``(B, classes)``."""
        return 0.0 * self.position + torch.zeros_like(x.flatten(1)[:, :1])


def location(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """The factory of `Location`."""
    return Location(classes)


def blind(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """The factory of `Blind`."""
    return Blind(classes)


LINEAR = ModelSpec("linear")
MLP = ModelSpec("mlp", {"hidden": [5]})
LOCATION = ModelSpec("coterie.testing.toys:location")
BLIND = ModelSpec("coterie.testing.toys:blind")


def names_of(k: int) -> tuple[str, ...]:
    """``client-0``, ``client-1``, ..."""
    return tuple(f"client-{i}" for i in range(k))


def classified(
    sizes: Sequence[int] = (7, 4, 9, 5), *, features: int = 4, classes: int = 3, seed: int = 0, validation: int = 6
) -> Federation:
    """Clients with ``sizes`` training examples, each with a random linear rule of its own."""
    draw = torch.Generator().manual_seed(seed)

    def split(counts: Sequence[int], rules: Sequence[Tensor]) -> ClientData:
        inputs = [torch.randn(n, features, generator=draw) + 0.5 for n in counts]
        return ClientData.from_clients(inputs, [(x @ rule).argmax(1) for x, rule in zip(inputs, rules, strict=True)])

    rules = [torch.randn(features, classes, generator=draw) for _ in sizes]
    few = [validation] * len(sizes)
    return Federation(
        names_of(len(sizes)), split(sizes, rules), split(few, rules), split(few, rules), "classification", classes
    )


def alike(k: int = 4, size: int = 8) -> Federation:
    """k clients with the very same data; their names differ and so do their batches: train on full batches."""
    one = classified((size,))
    return Federation(
        names_of(k), one.train.select([0] * k), one.validation.select([0] * k), one.test.select([0] * k),
        "classification", one.classes,
    )  # fmt: skip


def changed_inputs(data: ClientData, change: Callable[[Tensor], Tensor], positions: Tensor) -> ClientData:
    """A split with the inputs at ``positions`` changed, past all validation."""
    inputs = data.inputs.clone()
    rows = data.rows(positions)
    inputs[rows] = change(inputs[rows])
    return replace(data, inputs=inputs)


RAGGED = classified((7, 4, 9, 5, 1, 3, 2, 6))
