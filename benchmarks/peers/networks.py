"""The networks that every contestant trains, in plain torch, and what training them costs."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

CLASSES = 10
SHAPES = {"mlp": (1, 28, 28), "pgfed-cnn": (3, 32, 32), "feddwa-cnn": (3, 32, 32)}


def network(name: str) -> nn.Module:
    """FEDORA's MLP, PGFed's CNN or FedDWA's CNN with batch normalisation, layer by layer as Coterie names them."""
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
        )
    if name == "pgfed-cnn":
        return nn.Sequential(
            nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, CLASSES),
        )  # fmt: skip
    if name == "feddwa-cnn":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(32),
            nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(64),
            nn.Flatten(), nn.Linear(2304, 512), nn.Dropout(0.5), nn.ReLU(), nn.Linear(512, CLASSES),
        )  # fmt: skip
    raise ValueError(f"there is no network {name!r}; choose one of {', '.join(SHAPES)}")


def training_flops(name: str) -> int:
    """Floating-point operations of the linear and convolutional layers to train on one example.

    Two for each multiply-add, and three passes: forward, gradient of the weights, gradient of the inputs. The first
    layer needs no gradient of its inputs.
    """
    products: list[int] = []

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        products.append(layer.weight[0].numel() * prod(output.shape[1:]))

    module = network(name).eval()
    for layer in module:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    module(torch.zeros(1, *SHAPES[name]))
    return 2 * (3 * sum(products) - products[0])
