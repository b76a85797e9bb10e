"""Hyper-parameters are refused where a declared bound or a type says so, whoever wrote the method."""

from dataclasses import dataclass, field, fields
from math import inf, nan
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pytest

from coterie.contract import Algorithm, available_algorithms, option
from coterie.contract.options import Range, bounds_of, choices
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
        ({"mu": None}, "own.mu must be 0 or more, not None"),
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


@dataclass(frozen=True)
class Odd(Algorithm):
    """Types that say more than one thing, or that only a type checker understands."""

    name: ClassVar[str] = "odd"
    items: "Sequence[int]" = ()
    words: "a share in percent" = 3  # type: ignore[valid-type]  # noqa: F722
    sigma: float | Literal["median"] = 0.5
    count: int | Literal["all"] = 5
    parts: tuple[Literal["a", "b"], ...] = ("a",)
    told: float = field(default=0.5, metadata={"range": (0, 1)})
    way: Literal["this", "that"] = option("this", "which way")
    mu: float = option(1.0, "at least nought", least=0)


def test_other_types_are_left_alone() -> None:
    assert choices(Odd) == {"way": ("this", "that")}
    assert Odd(sigma="median", count="all", parts=("b",), told=7.0).sigma == "median"
    with pytest.raises(CoterieError, match=r"odd\.mu must be 0 or more"):
        Odd(mu=-1.0)
    with pytest.raises(CoterieError, match=r"odd\.way must be this or that"):
        Odd(way="there")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Heir(Own):
    """Overrides defaults; its variant forgets one."""

    name: ClassVar[str] = "heir"
    variants: ClassVar[dict[str, dict[str, object]]] = {"one": {"kind": "cos", "strength": 1.0}, "two": {"kind": "exp"}}
    variant: Literal["one", "two"] = "one"
    mu: float = 0.5
    strength: float | None = option(None, "set by the variant", least=0)


def test_an_override_keeps_the_bounds_and_a_variant_must_set_what_it_should() -> None:
    assert Heir().mu == 0.5
    with pytest.raises(CoterieError, match=r"heir\.mu must be 0 or more, not -1"):
        Heir(mu=-1.0)
    with pytest.raises(CoterieError, match=r"heir\.strength must be 0 or more, not None"):
        Heir(variant="two")


@pytest.mark.parametrize("value", ["much", [1.0], np.float32(-1), np.int64(-1), np.float32("nan")])
def test_what_is_no_number_in_bounds_is_refused_however_it_is_given(value: object) -> None:
    with pytest.raises(CoterieError, match=r"own\.mu must be 0 or more"):
        Own(mu=value)  # type: ignore[arg-type]
    assert Own(mu=np.float32(2)).mu == 2.0


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
        if each.name not in choices(cls) and "bool" not in str(each.type) and not str(bounds_of(cls, each.name))
    }
    assert free == {"fedora.temperature"}  # a negative one prefers the unlike
