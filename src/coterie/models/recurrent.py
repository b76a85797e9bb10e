"""Recurrent networks: for sequences of numbers and for text."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from coterie.models.factory import model


class _Recurrent(nn.Module):
    """A GRU over the first feature axis, and a linear head on its last state."""

    head_name = "head"

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        """``(B, steps, inputs) -> (B, classes)``."""
        states, _ = self.gru(x.flatten(2) if x.ndim > 2 else x.unsqueeze(2))
        return self.head(states[:, -1])


@model("gru")
def gru(feature_shape: Sequence[int], classes: int, hidden: int = 64) -> nn.Module:
    """A gated recurrent network over the first feature axis of a sequence."""
    return _Recurrent(prod(feature_shape[1:]), hidden, classes)


class _Characters(nn.Module):
    """A GRU over embedded characters, and a linear head on its last state."""

    head_name = "head"

    def __init__(self, characters: int, embedding: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.codes = characters  # inputs are 0 ... codes - 1, which whoever makes or checks some asks for
        self.embedding = nn.Embedding(characters, embedding)
        self.gru = nn.GRU(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, steps) -> (B, classes)``; codes of characters come as floating-point numbers."""
        states, _ = self.gru(self.embedding(x.long()))
        outputs: Tensor = self.head(states[:, -1])
        return outputs


@model("char-gru")
def char_gru(
    feature_shape: Sequence[int],
    classes: int,
    characters: int | None = None,
    embedding: int = 8,
    hidden: int = 64,
    layers: int = 1,
) -> nn.Module:
    """A gated recurrent network over embedded characters, which come as codes.

    Left out, ``characters`` is the number of classes: the next character is predicted.
    """
    if len(feature_shape) != 1:
        raise ValueError("it takes codes of characters, (steps,)")
    return _Characters(characters or classes, embedding, hidden, layers, classes)
