"""One schema from the summaries of several sites, whatever they say."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.errors import CoterieError
from coterie.federation.datasets.sites import SitesSource
from coterie.federation.merging import merged, received

NUMBERS, TEXTS, EMPTY = [4, 8.0, 4.0, 0], [["a", "b"], 1], [0, 0.0, 0.0, 4]


def options(**more: Any) -> SitesSource:
    return SitesSource(preprocessing="federated", target="y", labels=["no", "yes"], **more)


def schema(told: dict[str, dict[str, Any]], **more: Any) -> tuple[Any, dict[str, str]]:
    return merged({name: received(content, 10) for name, content in told.items()}, options(**more))


def test_a_column_without_a_value_is_what_it_is_elsewhere() -> None:
    found, odd = schema({"a": {"x": EMPTY, "z": NUMBERS}, "b": {"x": TEXTS, "z": NUMBERS}}, missing="mark")
    assert odd == {}
    assert [(feature.kind, feature.missing) for feature in found.features] == [("category", True), ("number", False)]
    assert (found.features[1].mean, found.features[1].std) == (2.0, 1.0)


def test_of_two_sites_the_first_holds() -> None:
    found, odd = schema({"a": {"x": TEXTS}, "b": {"x": NUMBERS}})
    assert found.features[0].kind == "category"
    assert odd["b"].startswith("the column 'x' holds numbers there, but categories elsewhere")


def test_texts_that_are_hardly_categories_are_left_out_unless_listed() -> None:
    names = [[f"name {number:03}" for number in range(101)], 0]
    told = {"a": received({"x": TEXTS}, 10), "b": received({"x": names}, 200)}
    found, odd = merged(told, options())
    assert odd == {"b": "the column 'x' has 101 categories there: list it under federation.categorical"}
    assert found.features[0].values == ["a", "b"]
    assert merged(told, options(categorical=["x"]))[1] == {}


def test_declared_columns_and_categories_hold_against_all_sites() -> None:
    told = {"a": {"x": [[], 0]}, "b": {"x": NUMBERS}, "c": {"x": NUMBERS}}
    found, odd = schema(told, categorical={"x": ["p", "q"]}, features=["x"])
    assert found.features[0].values == ["p", "q"]
    assert set(odd) == {"b", "c"}


@pytest.mark.parametrize(
    ("told", "more", "sentence"),
    [
        ({}, {}, "no site has sent"),
        ({"a": {"x": NUMBERS}}, {"features": ["w"]}, "no site has the columns of federation.features: it has no"),
        ({"a": {"x": [[], 3]}}, {}, "The column 'x' has no value in any training row"),
        (
            {
                "a": {"x": TEXTS, "y": NUMBERS, "z": NUMBERS},
                "b": {"x": NUMBERS, "y": TEXTS, "z": NUMBERS},
                "c": {"x": NUMBERS, "y": NUMBERS, "z": TEXTS},
            },
            {},
            "no two sites have like columns, .*: the column 'x' holds categories there, but numbers elsewhere",
        ),
    ],
)
def test_what_cannot_be_merged(told: dict[str, Any], more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        schema(told, **more)


@pytest.mark.parametrize(
    "content",
    [
        None, [], {}, {"": NUMBERS}, {"x": None}, {"x": [1, 2, 3]}, {"x": [True, 1.0, 0.0, 0]}, {"x": [1, "1", 0.0, 0]},
        {"x": [4, 10**400, 0.0, 0]}, {"x": [4, 1.0, float("inf"), 0]}, {"x": [-1, 0.0, 0.0, 0]}, {"x": [0, 1.0, 0.0, 0]},
        {"x": [["a", "a"], 0]}, {"x": [["\ud800"], 0]}, {"x": [["1.0"], 0]}, {"x": [[""], 0]}, {"x": [["a"], -1]},
        {"x": [[str(value) for value in range(11)], 0]}, {"x": [["a" * 1001], 0]}, {"\ud800": NUMBERS},
    ],
)  # fmt: skip
def test_what_is_no_summary_is_refused(content: Any) -> None:
    with pytest.raises(CoterieError, match=r"^it"):
        received(content, 10)
