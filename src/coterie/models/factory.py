"""Models by name, as plain ``torch.nn.Module`` s; a user's own as ``module:factory``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from math import prod
from typing import Any, Literal

from torch import nn

from coterie.errors import CoterieError, describe, find_attribute

Task = Literal["classification", "regression"]
Factory = Callable[..., nn.Module]
_FACTORIES: dict[str, Factory] = {}
_GIVEN = ("feature_shape", "classes", "task")  # known from the federation, never options


@dataclass(frozen=True)
class ModelSpec:
    """A model by name with its options, as a configuration gives it."""

    name: str = "mlp"
    options: Mapping[str, Any] = field(default_factory=dict)


def model(name: str) -> Callable[[Factory], Factory]:
    """Register a factory ``(feature_shape, classes, **options) -> nn.Module``."""

    def add(factory: Factory) -> Factory:
        _FACTORIES[name] = factory
        return factory

    return add


def available_models() -> dict[str, str]:
    """Names of the built-in models with one line about each."""
    return {name: (inspect.getdoc(f) or "").partition("\n")[0] for name, f in sorted(_FACTORIES.items())}


def build_model(
    name: str, feature_shape: Sequence[int], classes: int, task: Task = "classification", /, **options: Any
) -> nn.Module:
    """A fresh module for inputs of ``feature_shape`` with one output per class (or per target in regression).

    Raises ``CoterieError`` for an unknown name or option.
    """
    factory = find_factory(name)
    known = inspect.signature(factory).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    allowed = [key for key in known if key not in _GIVEN]
    for option in options:
        if option in _GIVEN or (option not in known and not takes_any):
            near = get_close_matches(option, allowed, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; it takes {', '.join(allowed) or 'none'}"
            raise CoterieError(f"model.{option} is not an option of model '{name}'{hint}")
    if "task" in known:
        options = {"task": task, **options}
    try:
        built = factory(feature_shape=tuple(feature_shape), classes=classes, **options)
    except (Exception, SystemExit) as error:
        raise CoterieError(
            f"model '{name}' could not be built for inputs of shape {tuple(feature_shape)}: {describe(error)}"
        ) from error
    if not isinstance(built, nn.Module):
        raise CoterieError(f"model '{name}' returned {type(built).__name__}, not a torch.nn.Module")
    return built


def find_factory(name: str) -> Factory:
    """The factory registered as ``name``, or the one at ``module:factory``; ``CoterieError`` with the nearest name."""
    if name in _FACTORIES:
        return _FACTORIES[name]
    if ":" in name:
        found: Factory = find_attribute(name, "model.name", "module:factory")
        if not callable(found):
            raise CoterieError(f"model.name '{name}' is a {type(found).__name__}, not a factory that can be called")
        return found
    near = get_close_matches(name, _FACTORIES, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(sorted(_FACTORIES))} or module:factory"
    raise CoterieError(f"model.name '{name}' is unknown; {hint}")


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
    """One linear layer: logistic or linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(feature_shape), classes))


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
