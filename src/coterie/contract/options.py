"""Hyper-parameters that explain themselves and know which values make sense."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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
            return f"between {self.least:g} and {self.most:g}"
        lower = "" if self.least is None else f"{self.least:g} or more"
        lower = lower if self.above is None else f"above {self.above:g}"
        upper = "" if self.most is None else f"at most {self.most:g}"
        upper = upper if self.below is None else f"below {self.below:g}"
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
    name; ``None`` passes where the type has it.
    """
    return field(
        default=default, metadata={"meaning": meaning, "paper": paper, "range": Range(least, above, most, below)}
    )


def explained(metadata: Any) -> tuple[str, str]:
    """The meaning and the paper's value of a dataclass field, empty where it was declared without."""
    return metadata.get("meaning", ""), metadata.get("paper", "")


def choices(cls: type) -> dict[str, tuple[Any, ...]]:
    """The values that the ``Literal`` types of a dataclass name, by option, ``None`` among them where it is allowed.

    Nothing for a class whose types name what is not there at run time, as imports under ``TYPE_CHECKING``.
    """
    try:
        hints = get_type_hints(cls)
    except (NameError, AttributeError, TypeError):
        return {}
    found = {each.name: tuple(_literals(hints[each.name])) for each in fields(cls)}
    optional = {name for name in found if type(None) in get_args(hints[name])}
    return {name: (*values, *([None] if name in optional else [])) for name, values in found.items() if values}


def _literals(kind: Any) -> list[Any]:
    """The values of a ``Literal``, also inside ``Literal[...] | None``; none for other types."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in _literals(part)]


def mistakes(algorithm: Any) -> list[tuple[str, str]]:
    """The options of a dataclass whose values are not among those declared, each with the rule that it breaks."""
    named, found = choices(type(algorithm)), list[tuple[str, str]]()
    for each in fields(algorithm):
        value, bounds = getattr(algorithm, each.name), each.metadata.get("range", Range())
        if each.name in named and value not in named[each.name]:
            found.append((each.name, one_of([choice for choice in named[each.name] if choice is not None])))
        elif isinstance(value, int | float) and not isinstance(value, bool) and value not in bounds:
            found.append((each.name, str(bounds) or "a number"))
    return found


def one_of(values: list[Any]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
