"""The convolutional networks of the papers, by name; FEDORA's is among the plain ones."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from coterie.models.convolutions import cnn, pixels_left
from coterie.models.factory import model


@model("feddwa-cnn")
def feddwa_cnn(feature_shape: Sequence[int], classes: int, dropout: float = 0.5) -> nn.Module:
    """FedDWA's network for 32 x 32 images (1,204,874 parameters with 10 classes, 1,251,044 with 100).

    As in the authors' code the batch normalisation follows the pooling, and dropout precedes the ReLU.
    """
    width = 64 * pixels_left(feature_shape, 2, kernel=3)
    return nn.Sequential(
        nn.Conv2d(feature_shape[0], 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(32),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(64),
        nn.Flatten(),
        nn.Linear(width, 512), nn.Dropout(dropout), nn.ReLU(),
        nn.Linear(512, classes),
    )  # fmt: skip


@model("feddwa-emnist-cnn")
def feddwa_emnist_cnn(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """FedDWA's network for EMNIST, 28 x 28 x 1 (2,278,334 parameters with 62 classes)."""
    return cnn(feature_shape, classes, hidden=2048)


@model("pgfed-cnn")
def pgfed_cnn(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """PGFed's network (878,538 parameters on CIFAR-10, 924,708 on CIFAR-100, 582,026 on 28 x 28 x 1)."""
    return cnn(feature_shape, classes)


@model("federico-cnn")
def federico_cnn(feature_shape: Sequence[int], classes: int, padding: int = 1) -> nn.Module:
    """FedeRiCo's network for CIFAR-10 (319,242 parameters; 303,882 with padding 0, which the paper leaves open)."""
    width = 128 * pixels_left(feature_shape, 3, kernel=3, padding=padding)
    return nn.Sequential(
        nn.Conv2d(feature_shape[0], 128, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width, classes),
    )  # fmt: skip
