from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.errors import CoterieError, CoterieWarning
from coterie.federation import FederationConfig, build_federation
from coterie.federation.datasets import SOURCES, Source
from coterie.federation.examples import Examples
from coterie.federation.folds import Fold, folded
from coterie.federation.partition import RULES, Division, Sizes
from coterie.federation.sides import Official

Make = Callable[..., Examples]


@pytest.fixture
def grouped(make_examples: Make) -> Examples:
    """60 examples of 3 classes at the hospitals west (30), east (20) and north (10), dealt in turns."""
    examples = make_examples([20, 20, 20], name="wards")
    hospital = np.array((["west"] * 3 + ["east"] * 2 + ["north"]) * 10)
    return replace(examples, groups={"hospital": hospital.tolist()})


def divide(examples: Examples, sizes: dict[str, Any] | None = None, **options: Any) -> Division:
    rule = RULES["natural"](rule="natural", **options)
    resolved = rule.resolve({"train": None, "validation": None, "test": None, **(sizes or {})})
    return rule.divide(examples, resolved, np.random.Generator(np.random.PCG64(0)))


def rows_of(division: Division, i: int) -> list[int]:
    return sorted(int(row) for split in (division.train, division.validation, division.test) for row in split[i])


def test_a_client_is_exactly_one_group(grouped: Examples) -> None:
    division = divide(grouped)
    assert list(division.names) == ["east", "north", "west"]
    for i, name in enumerate(division.names):
        assert rows_of(division, i) == [row for row, of in enumerate(grouped.groups["hospital"]) if of == name]
    assert [len(rows) for rows in division.validation] == [4, 2, 6]
    assert [len(rows) for rows in division.test] == [4, 2, 6]


def test_every_group_is_split_class_by_class(grouped: Examples) -> None:
    division = divide(grouped, {"validation": 0.2, "test": 0.2})
    assert np.bincount(grouped.labels[division.test[2]]).tolist() == [2, 2, 2]


def test_sizes_as_under_other_rules(grouped: Examples) -> None:
    division = divide(grouped, {"train": 3, "validation": 0.0, "test": 0.5})
    assert [len(rows) for rows in division.train] == [3, 3, 3]
    assert [len(rows) for rows in division.validation] == [0, 0, 0]
    assert [len(rows) for rows in division.test] == [10, 5, 15]


def test_small_groups_are_left_out_with_a_warning(grouped: Examples) -> None:
    with pytest.warns(CoterieWarning, match=r"wards: groups with fewer than 15 examples are left out \(north\)"):
        division = divide(grouped, min_examples=15)
    assert list(division.names) == ["east", "west"]


def test_a_long_list_of_small_groups_is_cut(make_examples: Make) -> None:
    names = [f"p{i:02d}" for i in range(20)] + ["big"] * 20
    examples = replace(make_examples([20, 20]), groups={"person": names})
    with pytest.warns(CoterieWarning, match=r"\(p00, p01, p02, p03, p04 and 15 more\)"):
        assert list(divide(examples).names) == ["big"]


def test_no_group_is_large_enough(grouped: Examples) -> None:
    with pytest.raises(CoterieError, match=r"has 31 examples \(partition.min_examples\); the largest has 30"):
        divide(grouped, min_examples=31)


def test_a_client_too_small_for_its_sizes_is_named(grouped: Examples) -> None:
    with pytest.raises(CoterieError, match=r"Client 'north' has 10 examples.*min_examples"):
        divide(grouped, {"test": 10})


def test_the_kind_of_group_is_chosen_where_there_are_several(grouped: Examples) -> None:
    ward = ["a"] * 30 + ["b"] * 30
    both = replace(grouped, groups={**grouped.groups, "ward": ward})
    assert list(divide(both, group="ward").names) == ["a", "b"]
    with pytest.raises(CoterieError, match=r"choose one by partition.group, hospital or ward"):
        divide(both)
    with pytest.raises(CoterieError, match=r"partition.group is 'hopsital'.*did you mean hospital?"):
        divide(both, group="hopsital")
    with pytest.raises(CoterieError, match=r"'person'.*its groups are hospital, ward"):
        divide(both, group="person")


def test_a_source_without_groups(make_examples: Make) -> None:
    with pytest.raises(CoterieError, match="'toy' has none: choose another rule, such as dirichlet"):
        divide(make_examples([10, 10]))


def test_every_example_has_a_group(grouped: Examples) -> None:
    with pytest.raises(CoterieError, match="'wards' has 60 inputs but 2 groups 'hospital': give one an input"):
        replace(grouped, groups={"hospital": ["west", "east"]})
    with pytest.raises(CoterieError, match="'wards' has 60 inputs but 3 targets"):
        replace(grouped, targets=torch.zeros(3, dtype=torch.int64))


def test_the_official_test_set_does_not_follow_groups() -> None:
    with pytest.raises(CoterieError, match=r"federation: under natural .* give test as a fraction"):
        build_federation({"source": "digits", "partition": {"rule": "natural"}, "test": "official"}, seed=0)


def test_a_federation_by_groups(grouped: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "wards", Source("wards", "toy", "", lambda data_dir, seed: grouped))
    section = {"source": "wards", "partition": {"rule": "natural"}}
    federation = build_federation(section, seed=0)
    assert federation.names == ("east", "north", "west")
    again = build_federation(FederationConfig.model_validate(section).model_dump(), seed=0)
    assert torch.equal(again.train.client(1)[0], federation.train.client(1)[0])
    other = build_federation(section, seed=1)
    assert not torch.equal(other.train.client(1)[0], federation.train.client(1)[0])


def test_clients_are_not_counted() -> None:
    section = {"source": "digits", "partition": {"rule": "natural", "clients": 3}}
    with pytest.raises(CoterieError, match=r"Unknown key federation.partition.clients. Valid: rule, group, min_exam"):
        build_federation(section, seed=0)


class Counted:
    """A column that counts how often all of it is read."""

    def __init__(self, values: list[Any]) -> None:
        self.values, self.reads = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.reads += 1
        return np.array(self.values, dtype=dtype)


class Parts(np.ndarray):
    """Parts that count how often all of them are compared."""

    reads = 0

    def __eq__(self, other: object) -> Any:
        Parts.reads += len(self) == 1200
        return np.asarray(self) == other


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("columns", [["blocks"], ["order"], ["blocks", "order"]])
def test_work_does_not_grow_with_clients_times_rows(
    official: bool, columns: list[str], make_examples: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of all rows are read a few times, not once for each of 40 clients, however these are split."""
    monkeypatch.setattr(Parts, "reads", 0)
    parts = np.tile(np.array(["train"] * 20 + ["test"] * 10, dtype=object), 40).view(Parts)
    counted: dict[str, Any] = {
        "blocks": Counted([f"p{row // 5}" for row in range(1200)]),
        "order": Counted([row % 30 for row in range(1200)]),
    }
    examples = replace(
        make_examples([600, 600]),
        groups={"ward": [f"w{row // 30}" for row in range(1200)]},
        sides=Official(parts) if official else None,
        **{name: counted[name] for name in columns},
    )
    sizes = Sizes(train="rest", validation=0.2, test="official" if official else 0.2)
    division = RULES["natural"](rule="natural").divide(examples, sizes, np.random.Generator(np.random.PCG64(0)))
    folded(division, examples, Fold(index=0, of=4), 0)
    assert len(division.test) == 40
    assert [counted[name].reads for name in columns] == [1 for _ in columns]
    assert Parts.reads == official
