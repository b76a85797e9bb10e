"""A model that suits the data: its kind from the shape of an input, its size from how much there is to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

from torch import nn

from coterie.models.convolutions import cnn, cnn1d, pixels_left
from coterie.models.factory import model
from coterie.models.perceptrons import mlp
from coterie.models.recurrent import char_gru

Kind = Literal["numbers", "codes"]
NARROWEST, WIDEST = 16, 256  # hidden units
WEIGHTS_AN_EXAMPLE = 10  # what the first layer may have at most, unless it is the narrowest
DEEP_FROM = 1000  # training examples of a client from which a second hidden layer pays


@model("auto")
def auto(
    feature_shape: Sequence[int], classes: int, inputs: Kind = "numbers", examples: int | None = None
) -> nn.Module:
    """Sized from the data: mlp for tables, cnn1d for signals, cnn for pictures, char-gru for text.

    Args:
        feature_shape: (features,), (channels, steps) or (channels, height, width); decides the kind.
        classes: outputs.
        inputs: ``codes`` for text, whose shape is that of a table.
        examples: training examples of a typical client; left out: many.
    """
    if inputs not in ("numbers", "codes"):
        raise ValueError(f"inputs is numbers or codes, not {inputs!r}")
    if inputs == "codes":
        return char_gru(feature_shape, classes)
    if len(feature_shape) == 2 and feature_shape[1] >= 4:
        return cnn1d(feature_shape, classes)
    if len(feature_shape) == 3:
        for channels in ((32, 64), (32,)):
            if _fits(feature_shape, len(channels)):
                return cnn(feature_shape, classes, channels=channels, hidden=128)
    return mlp(feature_shape, classes, hidden=hidden_layers(prod(feature_shape), classes, examples))


def hidden_layers(features: int, classes: int, examples: int | None) -> tuple[int, ...]:
    """Hidden units for a table: a power of two, at most twice the features, fewer where there is little to learn.

    There are never fewer than ``NARROWEST``, nor more than ``WIDEST``.
    """
    width = WIDEST
    while width > NARROWEST and width > 2 * features:
        width //= 2
    while examples and width > NARROWEST and width * (features + classes) > WEIGHTS_AN_EXAMPLE * examples:
        width //= 2
    return (width,) if examples and examples < DEEP_FROM else (width, width)


def _fits(feature_shape: Sequence[int], convolutions: int) -> bool:
    try:
        return pixels_left(feature_shape, convolutions) > 0
    except ValueError:
        return False
