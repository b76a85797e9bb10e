"""Fully connected networks, for tables and everything else that has no shape of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from coterie.models.factory import model


@model("mlp")
def mlp(
    feature_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128, 128), dropout: float = 0.0
) -> nn.Module:
    """Fully connected network with ReLU; FEDORA's 784-128-128-10 by default (118,282 parameters on MNIST)."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = prod(feature_shape)
    for size in hidden:
        if size < 1:
            raise ValueError(f"a hidden layer has at least one unit, not {size}")
        layers += [nn.Linear(width, size), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))


@model("linear")
def linear(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """One linear layer: logistic or linear regression; with ``training.weight_decay`` ridge regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(feature_shape), classes))
