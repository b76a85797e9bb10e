"""Convolutional networks: for pictures, FEDORA's among them, and for signals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from coterie.models.factory import model


@model("cnn")
def cnn(
    feature_shape: Sequence[int],
    classes: int,
    channels: Sequence[int] = (32, 64),
    hidden: int = 512,
    batch_norm: bool = False,
) -> nn.Module:
    """Convolutions 5x5 with ReLU and 2x2 pooling, then one hidden layer (PGFed's network by default)."""
    pixels = pixels_left(feature_shape, len(channels))
    layers: list[nn.Module] = []
    for before, after in pairwise((feature_shape[0], *channels)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
        if batch_norm:
            layers.append(nn.BatchNorm2d(after))
    width = (feature_shape[0], *channels)[-1] * pixels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def pixels_left(feature_shape: Sequence[int], convolutions: int, kernel: int = 5, padding: int = 0) -> int:
    """Pixels of an image after so many convolutions, each with 2x2 pooling.

    Raises:
        ValueError: the inputs are no images, or too small ones.
    """
    if len(feature_shape) != 3:
        raise ValueError("it takes images, (channels, height, width)")
    height, width = feature_shape[1:]
    lost = kernel - 1 - 2 * padding
    for _ in range(convolutions):
        height, width = (height - lost) // 2, (width - lost) // 2
        if min(height, width) < 1:
            raise ValueError(
                f"images of {feature_shape[1]} x {feature_shape[2]} are too small for {convolutions} convolutions"
            )
    return height * width


@model("fedora-cnn")
def fedora_cnn(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """FEDORA's five-layer network for 32 x 32 images (121,182 parameters with 10 classes)."""
    pixels = pixels_left(feature_shape, 2)
    return nn.Sequential(
        nn.Conv2d(feature_shape[0], 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * pixels, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip


@model("cnn1d")
def cnn1d(
    feature_shape: Sequence[int],
    classes: int,
    channels: Sequence[int] = (32, 64),
    kernel: int = 5,
    hidden: int = 64,
    dropout: float = 0.0,
) -> nn.Module:
    """Convolutions along the steps of a signal, each with ReLU and pooling by 2, then one hidden layer.

    Padding keeps the number of steps, so that only pooling shortens the signal.
    """
    if len(feature_shape) != 2:
        raise ValueError("it takes signals, (channels, steps)")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel is an odd number of steps, not {kernel}")
    steps = feature_shape[1] // 2 ** len(channels)
    if steps < 1:
        raise ValueError(f"signals of {feature_shape[1]} steps are too short to be halved {len(channels)} times")
    layers: list[nn.Module] = []
    for before, after in pairwise((feature_shape[0], *channels)):
        layers += [nn.Conv1d(before, after, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool1d(2)]
    layers += [nn.Flatten(), nn.Linear((feature_shape[0], *channels)[-1] * steps, hidden), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden, classes))
