from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from coterie.models import Stack, build_model
from coterie.models.auto import hidden_layers


def layers(shape: tuple[int, ...], classes: int = 3, **options: Any) -> list[str]:
    """Every layer's kind, and the widths of the linear ones."""
    found = [
        module for module in build_model("auto", shape, classes, **options).modules() if not list(module.children())
    ]
    return [f"{m.in_features}-{m.out_features}" if isinstance(m, nn.Linear) else type(m).__name__ for m in found]


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((32,), {"examples": 150}, ["Flatten", "32-32", "ReLU", "32-3"]),
        ((9, 32), {}, ["Conv1d", "ReLU", "MaxPool1d"] * 2 + ["Flatten", "512-64", "ReLU", "64-3"]),
        ((9, 3), {"examples": 9}, ["Flatten", "27-16", "ReLU", "16-3"]),
        ((3, 32, 32), {}, ["Conv2d", "ReLU", "MaxPool2d"] * 2 + ["Flatten", "1600-128", "ReLU", "128-3"]),
        ((1, 8, 8), {}, ["Conv2d", "ReLU", "MaxPool2d", "Flatten", "128-128", "ReLU", "128-3"]),
        ((1, 3, 3), {"examples": 5}, ["Flatten", "9-16", "ReLU", "16-3"]),
        ((80,), {"inputs": "codes"}, ["Embedding", "GRU", "64-3"]),
    ],
)
def test_the_kind_follows_the_shape(shape: tuple[int, ...], options: dict[str, Any], expected: list[str]) -> None:
    assert layers(shape, **options) == expected


def test_the_size_follows_features_and_examples() -> None:
    assert hidden_layers(200, 2, None) == (256, 256)
    assert hidden_layers(200, 2, 100_000) == (256, 256)
    assert hidden_layers(200, 2, 900) == (32,)  # 202 * 32 weights are at most 10 an example
    assert hidden_layers(20, 2, 5000) == (32, 32)
    assert hidden_layers(1901, 1, 15) == (16,)


def test_codes_are_looked_up_and_their_order_counts() -> None:
    module = build_model("char-gru", (4,), 7)
    codes = torch.tensor([[1.0, 2, 3, 6], [6, 3, 2, 1]])
    one, other = module(codes)
    assert not torch.equal(one, other)
    assert torch.equal(module(codes.double())[0], one)
    assert Stack(lambda: build_model("char-gru", (4,), 7), (4,)).executor == "loop"
