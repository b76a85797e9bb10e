"""Residual networks of basic blocks (He et al., CVPR 2016): eight and eighteen layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.functional import relu

from coterie.models.factory import model

Stem = Literal["cifar", "pooled", "imagenet"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, before, h, w) -> (B, after, h / stride, w / stride)``."""
        return relu(self.residual(x) + self.shortcut(x))


class Mean(nn.Module):
    """Global average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """``(B, channels, h, w) -> (B, channels)``."""
        return x.mean((2, 3))


@model("resnet8")
def resnet8(
    feature_shape: Sequence[int],
    classes: int,
    widths: Sequence[int] = (152, 304, 608),
    stem: Stem = "pooled",
) -> nn.Module:
    """ResNet of eight layers, by default about as large as FedDWA's for Tiny-ImageNet (7,017,280 parameters).

    FedDWA's table 4 implies a model of 26.78 MiB for 200 classes without saying how it is built. Of the plain
    networks of three stages with doubling widths and one block each, that of these widths is the nearest (26.77
    MiB; with biases, useless before batch normalisation, it would be 26.78). The authors' code has the same
    network with the widths 16, 32 and 64, which is 90,392 parameters or 0.34 MiB, and its stem ``pooled``.
    """
    return _residual(feature_shape, classes, widths, 1, stem)


@model("resnet18")
def resnet18(
    feature_shape: Sequence[int],
    classes: int,
    widths: Sequence[int] = (64, 128, 256, 512),
    stem: Stem = "cifar",
) -> nn.Module:
    """ResNet of eighteen layers, for small images (11,220,132 parameters with 100 classes: FedeRiCo's CIFAR-100)."""
    return _residual(feature_shape, classes, widths, 2, stem)


def _residual(feature_shape: Sequence[int], classes: int, widths: Sequence[int], blocks: int, stem: Stem) -> nn.Module:
    """``blocks`` basic blocks in each stage; every stage but the first halves height and width.

    Raises:
        ValueError: the inputs are no images, there is no stage, or no such stem.
    """
    if len(feature_shape) != 3:
        raise ValueError("it takes images, (channels, height, width)")
    if not widths:
        raise ValueError("widths needs a value for each stage")
    stages = [
        BasicBlock(before if block == 0 else after, after, 2 if block == 0 and stage > 0 else 1)
        for stage, (before, after) in enumerate(pairwise((widths[0], *widths)))
        for block in range(blocks)
    ]
    layers = [*_stem(feature_shape[0], widths[0], stem), *stages, Mean(), nn.Linear(widths[-1], classes)]
    network = nn.Sequential(*layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return network


def _stem(channels: int, width: int, stem: Stem) -> list[nn.Module]:
    """3x3 for small images, the same with max-pooling, or ImageNet's 7x7 with stride 2 and max-pooling."""
    if stem not in get_args(Stem):
        raise ValueError(f"stem is one of {', '.join(get_args(Stem))}, not {stem!r}")
    size, stride = (7, 2) if stem == "imagenet" else (3, 1)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
    ]  # fmt: skip
    return layers if stem == "cifar" else [*layers, nn.MaxPool2d(3, 2, padding=1)]
