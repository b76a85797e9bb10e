"""Hyper-parameters are refused where a declared bound or a type says so, whoever wrote the method."""

from dataclasses import dataclass, fields
from math import inf, nan
from typing import TYPE_CHECKING, ClassVar, Literal

import pytest

from coterie.contract import Algorithm, available_algorithms, option
from coterie.contract.options import Range, choices
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Own(Algorithm):
    """A method of somebody's own."""

    name: ClassVar[str] = "own"
    mu: float = option(1.0, "at least nought", least=0)
    share: float = option(0.5, "a share", least=0, most=1)
    p: float = option(0.5, "a probability that is neither", above=0, below=1)
    rate: float | None = option(None, "a rate, or none", above=0)
    way: Literal["this", "that", "other"] = option("this", "which way")
    kind: Literal["cos", "exp"] | None = option(None, "a kind, or none")
    plain: float = 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -0.1}, "own.mu must be 0 or more, not -0.1"),
        ({"mu": nan}, "own.mu must be 0 or more, not nan"),
        ({"share": 1.5}, "own.share must be between 0 and 1, not 1.5"),
        ({"p": 0}, "own.p must be above 0 and below 1, not 0"),
        ({"p": 1.0}, "own.p must be above 0 and below 1, not 1.0"),
        ({"rate": 0.0}, "own.rate must be above 0, not 0.0"),
        ({"way": "there"}, "own.way must be this, that or other, not 'there'"),
        ({"way": None}, "own.way must be this, that or other, not None"),
        ({"kind": "sin"}, "own.kind must be cos or exp, not 'sin'"),
        ({"plain": nan}, "own.plain must be a number, not nan"),
    ],
)
def test_a_value_outside_what_is_declared_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(CoterieError, match=f"^{message}$".replace(".", r"\.")):
        Own(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"mu": 0}, {"mu": inf}, {"share": 0}, {"share": 1}, {"p": 1e-9}, {"rate": None}, {"kind": None}, {"plain": -inf}],
)
def test_the_bounds_themselves_pass_as_they_are_declared(options: dict[str, object]) -> None:
    assert {key: getattr(Own(**options), key) for key in options} == options  # type: ignore[arg-type]


def test_types_that_only_a_checker_sees_make_a_class_unchecked_and_not_unusable() -> None:
    @dataclass(frozen=True)
    class Hidden(Algorithm):
        name: ClassVar[str] = "hidden"
        items: "Sequence[int]" = ()
        mu: float = option(1.0, "at least nought", least=0)

    assert choices(Hidden) == {}
    assert Hidden().mu == 1.0
    with pytest.raises(CoterieError, match=r"hidden\.mu must be 0 or more"):
        Hidden(mu=-1.0)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Range(), ""),
        (Range(least=1), "1 or more"),
        (Range(above=0), "above 0"),
        (Range(most=1), "at most 1"),
        (Range(least=0, most=1), "between 0 and 1"),
        (Range(above=0, most=1), "above 0 and at most 1"),
        (Range(least=0, below=1), "0 or more and below 1"),
    ],
)
def test_a_range_says_its_rule(bounds: Range, words: str) -> None:
    assert str(bounds) == words


def test_every_number_of_a_method_of_ours_has_bounds() -> None:
    free = {
        f"{name}.{each.name}"
        for name, cls in available_algorithms().items()
        if cls.__module__.startswith("coterie.algorithms.")
        for each in fields(cls)
        if each.name not in choices(cls) and "bool" not in str(each.type) and not str(each.metadata["range"])
    }
    assert free == {"fedora.temperature"}  # a negative one prefers the unlike
