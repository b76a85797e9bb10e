"""Models by name, as plain ``torch.nn.Module`` s; a user's own as ``module:factory``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

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
    if any(is_lazy(parameter) for parameter in built.parameters()):  # its layers take their widths from a first batch
        with torch.no_grad():
            built.eval()(torch.zeros(2, *feature_shape))
        built.train()
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
