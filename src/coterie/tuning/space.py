"""What is searched: options of methods and keys of ``training``, each with listed values or a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coterie.config import RangeConfig, TrainingConfig
from coterie.config.explain import nearest
from coterie.contract import algorithm_class
from coterie.errors import CoterieError
from coterie.yamltext import read_yaml

TRAINING = "training."
Dimension = list[Any] | RangeConfig
"""Values to choose from, or a range."""


@dataclass(frozen=True)
class Space:
    """What is searched for one method.

    Attributes
    ----------
    method : str
        Its name, or its label in the configuration.
    dimensions : mapping
        Listed values or a range by key: an option such as ``lambda``, or ``training.lr``.
    """

    method: str
    dimensions: Mapping[str, Dimension]

    @property
    def finite(self) -> bool:
        """Whether every dimension lists its values."""
        return all(isinstance(dimension, list) for dimension in self.dimensions.values())

    def corners(self) -> list[dict[str, Any]]:
        """Settings that show every listed value and both ends of every range, beside the first of all other keys."""
        ends = {
            key: dimension if isinstance(dimension, list) else [dimension.low, dimension.high]
            for key, dimension in self.dimensions.items()
        }
        first = {key: values[0] for key, values in ends.items()}
        return [first, *({**first, key: value} for key, values in ends.items() for value in values[1:])]


def read_space(texts: Sequence[str]) -> dict[str, Any]:
    """The section ``tune.space`` that ``--space key=0.1,1,10`` and ``--space key=0.01..10:log`` stand for.

    Raises
    ------
    CoterieError
        A text is neither.
    """
    space: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise CoterieError(f"--space {text}: give KEY=VALUES, such as lambda=0.1,1,10 or mu=0.01..10:log.")
        if key.strip() in space:
            raise CoterieError(f"--space {text}: {key.strip()} is given twice; list its values in one.")
        space[key.strip()] = values.strip() if ".." in values else read_yaml(f"[{values}]", f"--space {text}")
    return space


def space_of(method: str, name: str, section: Mapping[str, Dimension]) -> Space:
    """The part of ``tune.space`` that concerns one method: its own options, and all keys of ``training``.

    Parameters
    ----------
    method : str
        What the method is called: its name, or its label in the configuration.
    name : str
        The name it is registered by.
    section : mapping
        ``tune.space``; a key may be preceded by what a method is called, ``fedprox.mu``, and then is for it alone.
    """
    options = options_of(name)
    found: dict[str, Dimension] = {}
    for key, dimension in section.items():
        owner, own = _owner(key, [method])
        if (own in options or own.startswith(TRAINING)) and (owner is not None or own not in found):
            found[own] = dimension
    return Space(method, found)


def check_keys(methods: Mapping[str, str], section: Mapping[str, Dimension]) -> None:
    """Refuse keys that no method has.

    Parameters
    ----------
    methods : mapping
        Registered names by what the methods are called.
    section : mapping
        ``tune.space``.

    Raises
    ------
    CoterieError
        Names the key and the nearest valid one; or the method for which there is nothing to search.
    """
    training = [TRAINING + key for key in TrainingConfig.model_fields]
    for key in section:
        owner, own = _owner(key, list(methods))
        asked = [owner] if owner is not None else list(methods)
        options = list(dict.fromkeys(option for method in asked for option in options_of(methods[method])))
        known = [*options, *training]
        if own in options or own in training or own.rpartition(".")[0] == "training.schedule":
            continue
        if own in TrainingConfig.model_fields:
            raise CoterieError(f"tune.space: {key} is a key of training: did you mean {TRAINING}{own}?")
        near = nearest(own, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}."
        whose = f"{asked[0]} has" if len(asked) == 1 else f"none of {', '.join(asked)} has"
        raise CoterieError(f"tune.space: {whose} no option {own}, and training neither: {hint}")
    for method, name in methods.items():
        if not space_of(method, name, section).dimensions:
            raise CoterieError(
                f"tune.space: there is nothing to search for {method}: add one of its options or a training key."
            )


def options_of(name: str) -> list[str]:
    """The options of a method."""
    return [field.name.rstrip("_") for field in fields(algorithm_class(name))]


def _owner(key: str, methods: Sequence[str]) -> tuple[str | None, str]:
    """``fedprox.mu`` is ``mu`` of fedprox; a key without a method belongs to whoever has it."""
    for method in methods:
        if key.startswith(f"{method}."):
            return method, key.removeprefix(f"{method}.")
    return None, key
