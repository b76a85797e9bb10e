"""Hyper-parameters that explain themselves and know which values make sense."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from numbers import Real
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers that an option takes; a bound that is ``None`` is none."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        lower = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        upper = (self.most is None or value <= self.most) and (self.below is None or value < self.below)
        return lower and upper and value == value  # NaN is no number

    def __str__(self) -> str:
        """The rule in words, as in ``must be 0 or more``; empty where there is none."""
        if self.least is not None and self.most is not None:
            return f"between {self.least:.12g} and {self.most:.12g}"
        lower = "" if self.least is None else f"{self.least:.12g} or more"
        lower = lower if self.above is None else f"above {self.above:.12g}"
        upper = "" if self.most is None else f"at most {self.most:.12g}"
        upper = upper if self.below is None else f"below {self.below:.12g}"
        return " and ".join(part for part in (lower, upper) if part)


def option(
    default: T,
    meaning: str,
    *,
    paper: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> T:
    """A hyper-parameter of an algorithm: its default, one line of meaning, and the value that its paper uses.

    ``lambda_: float = option(1.0, "strength of the pull; 0 is LOCAL", paper="0.1, 1 or 2", least=0)``

    Values outside the bounds are refused when the algorithm is made, and so are those that a ``Literal`` type does not
    name; ``None`` passes where the type has it. An option that overrides another keeps its bounds unless it has some.
    """
    return field(
        default=default, metadata={"meaning": meaning, "paper": paper, "range": Range(least, above, most, below)}
    )


def explained(metadata: Any) -> tuple[str, str]:
    """The meaning and the paper's value of a dataclass field, empty where it was declared without."""
    return metadata.get("meaning", ""), metadata.get("paper", "")


def choices(cls: type) -> dict[str, tuple[Any, ...]]:
    """The values of options whose type is a ``Literal``, by option, ``None`` among them where it is allowed.

    A type that is more than that says nothing, and so does one that cannot be resolved at run time, such as a name
    imported under ``TYPE_CHECKING``.
    """
    found = {}
    for each in fields(cls):
        parts = _parts(_type_of(cls, each.name))
        values = [value for part in parts for value in (get_args(part) if get_origin(part) is Literal else [])]
        if values and all(get_origin(part) is Literal or part in (None, NoneType) for part in parts):
            found[each.name] = (*values, *([None] if NoneType in parts and None not in values else []))
    return found


def mistakes(algorithm: Any) -> list[tuple[str, str]]:
    """The options of a dataclass whose values are not among those declared, each with the rule that it breaks.

    An option that some variant sets must have a value in the end.
    """
    cls, found = type(algorithm), list[tuple[str, str]]()
    named, set_by_variants = choices(cls), {name for values in cls.variants.values() for name in values}
    for each in fields(algorithm):
        value, bounds = getattr(algorithm, each.name, None), bounds_of(cls, each.name)
        texts = [choice for choice in named.get(each.name, ()) if choice is not None]
        if value is None:
            declared = bool(texts or str(bounds))
            right = each.name not in set_by_variants and (not declared or _may_be_none(cls, each))
        elif texts:
            right = value in texts
        elif str(bounds) or isinstance(value, float):
            right = isinstance(value, Real) and float(value) in bounds
        else:
            right = True
        if not right:
            found.append((each.name, one_of(texts) if texts else str(bounds) or "a number"))
    return found


def bounds_of(cls: type, name: str) -> Range:
    """The bounds of an option: its own, or those of the option that it overrides."""
    for base in cls.__mro__:
        declared = vars(base).get("__dataclass_fields__", {}).get(name)
        bounds = None if declared is None else declared.metadata.get("range")
        if isinstance(bounds, Range) and str(bounds):
            return bounds
    return Range()


def one_of(values: Sequence[Any]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _may_be_none(cls: type, each: Field[Any]) -> bool:
    kind = _type_of(cls, each.name)
    return each.default is None or kind is Any or any(part in (None, NoneType, Any) for part in _parts(kind))


def _parts(kind: Any) -> tuple[Any, ...]:
    """The members of a union; any other type by itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _type_of(cls: type, name: str) -> Any:
    """The type of a field as the class that declares it means it; ``Any`` where that cannot be told."""
    owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
    declared = vars(owner)["__annotations__"][name]
    if not isinstance(declared, str):
        return declared
    try:
        alone = SimpleNamespace(__annotations__={name: declared})
        return get_type_hints(alone, vars(sys.modules[owner.__module__]), dict(vars(owner)))[name]
    except Exception:  # somebody's own class may say anything there
        return Any
