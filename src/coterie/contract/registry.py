"""Algorithms by name: those of the package, and those that other packages announce by an entry point."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from coterie.contract.algorithm import Algorithm
from coterie.errors import CoterieError, find_attribute

_REGISTERED: dict[str, type[Algorithm]] = {}
_ALIASES: dict[str, tuple[str, str]] = {}
A = TypeVar("A", bound=type[Algorithm])


def alias(name: str, algorithm: str, variant: str) -> None:
    """Let ``name`` stand for a variant of an algorithm."""
    _ALIASES[name] = (algorithm, variant)


def register(algorithm: A) -> A:
    """Make an algorithm available under its ``name``."""
    if not algorithm.name:
        raise CoterieError(f"algorithm {algorithm.__name__} needs a class attribute 'name' to be registered")
    known = _REGISTERED.get(algorithm.name)
    if known is not None and (known.__module__, known.__qualname__) != (algorithm.__module__, algorithm.__qualname__):
        raise CoterieError(f"algorithm name {algorithm.name!r} is taken by {known.__module__}.{known.__qualname__}")
    _REGISTERED[algorithm.name] = algorithm
    return algorithm


@cache
def _scan() -> None:
    package = importlib.import_module("coterie.algorithms")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in entry_points(group="coterie.algorithms"):
        entry.load()


def available_algorithms() -> dict[str, type[Algorithm]]:
    """All registered algorithms by name."""
    _scan()
    return dict(sorted(_REGISTERED.items()))


def algorithm_class(name: str) -> type[Algorithm]:
    """The class registered as ``name``, or the one at ``module:Class``; ``CoterieError`` with the nearest name."""
    known = available_algorithms()
    name = _ALIASES.get(name, (name, ""))[0]
    if name in known:
        return known[name]
    if ":" in name:
        found = find_attribute(name, "algorithm", "module:Class")
        if not (isinstance(found, type) and issubclass(found, Algorithm)):
            raise CoterieError(f"'{name}' is not a subclass of coterie.Algorithm")
        return found
    near = get_close_matches(name, [*known, *_ALIASES], 1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(known)}"
    raise CoterieError(f"algorithm '{name}' is unknown; {hint}")


def make_algorithm(name: str, variant: str | None = None, **options: Any) -> Algorithm:
    """An algorithm by name with options (``lambda`` may be written without its trailing underscore).

    Raises ``CoterieError`` for an unknown name or option (with the nearest valid one) or a wrong value.
    """
    cls = algorithm_class(name)
    if name in _ALIASES and variant is None:
        variant = _ALIASES[name][1]
    return build_algorithm(cls, name, variant, options)


def build_algorithm(cls: type[Algorithm], name: str, variant: str | None, options: Mapping[str, Any]) -> Algorithm:
    """An algorithm of a class; ``name`` is what it is called in messages.

    Raises ``CoterieError`` for an unknown option (with the nearest valid one) or a wrong value.
    """
    options = dict(options)
    known = {f.name.rstrip("_"): f for f in fields(cls)}
    if variant is not None:
        if "variant" not in known:
            raise CoterieError(f"algorithm {name} has no variants, so variant {variant!r} cannot be chosen")
        options["variant"] = variant
    values: dict[str, Any] = {}
    for option, value in options.items():
        field = known.get(option.rstrip("_"))
        if field is None:
            near = get_close_matches(option, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it takes {', '.join(known) or 'no options'}"
            raise CoterieError(f"algorithm {name} has no option '{option}'; {hint}")
        values[field.name] = _converted(name, option, value, str(field.type))
    return cls(**values)


def _converted(name: str, option: str, value: Any, declared: str) -> Any:
    """Refuse a value of another type than declared; an integer passes for a float, and 'inf' too."""
    if value is None and "None" in declared:
        return None
    if "float" in declared and isinstance(value, str) and value.strip().lstrip("+-.") in ("inf", "infinity"):
        return float(value.replace(".inf", "inf"))
    expected: tuple[type, ...] = ()
    for word, kind in (("bool", bool), ("int", int), ("float", float), ("str", str), ("Literal", str)):
        if word in declared:
            expected += (kind,)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if float in expected and is_number:
        return float(value)
    if not expected or (isinstance(value, expected) and (bool in expected or not isinstance(value, bool))):
        return value
    wanted = " or ".join(kind.__name__ for kind in expected)
    raise CoterieError(f"algorithm {name}: option '{option}' takes {wanted}, not {value!r}")
