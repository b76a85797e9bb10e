"""The rule dominant: groups of clients whose data are mostly of their group's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dividing import assert_disjoint, assert_same, counts, divide, joined, owned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.examples import Examples
from coterie.federation.partition.dominant import rota

Make = Callable[..., Examples]


def groups_of(division: Any) -> np.ndarray:
    return np.array(division.columns["group"])


def test_paper_by_hand(make_examples: Make) -> None:
    """Two groups of one client, two classes each of four; half of the examples are common to all.

    A client of size m has m/2 examples of its two classes and m/2 of all four: 3m/8 of each of its own and m/8 of
    each of the others. The 20 examples of a class are used up at m = 40.
    """
    examples = make_examples([20, 20, 20, 20])
    partition = {"rule": "dominant", "clients": 2, "groups": 2, "dominant_share": 0.5, "dominant_classes": 2}
    has = owned(examples, divide(examples, partition))
    assert has.sum(0).tolist() == [20, 20, 20, 20]
    assert np.sort(has, axis=1).tolist() == [[5, 5, 15, 15]] * 2


def test_a_scarce_class_limits_the_size(make_examples: Make) -> None:
    """As above with 8 examples of class 0, which its own group needs 3m/8 of and the other one m/8: m = 16."""
    examples = make_examples([8, 20, 20, 20])
    partition = {"rule": "dominant", "clients": 2, "groups": 2, "dominant_share": 0.5, "dominant_classes": 2}
    has = owned(examples, divide(examples, partition))
    assert np.sort(has, axis=1).tolist() == [[2, 2, 6, 6]] * 2
    assert has[:, 0].sum() == 8


@pytest.mark.parametrize(
    ("classes", "each", "size", "per_class"),
    [
        # per class and example: groups that have it * 0.8 * 5 clients / each + 0.2 * 20 clients / classes
        (10, 3, 600 / (2 * 0.8 * 5 / 3 + 0.4), 600),
        (100, 20, 600 / (0.8 * 5 / 20 + 0.04), 600),
        (200, 40, 540 / (0.8 * 5 / 40 + 0.02), 540),
    ],
    ids=["CIFAR-10", "CIFAR-100", "Tiny"],
)
def test_the_papers_settings(make_examples: Make, classes: int, each: int, size: float, per_class: int) -> None:
    examples = make_examples([per_class * 5 // 6] * classes, [per_class // 6] * classes)
    for seed in range(3):
        division = divide(examples, {"rule": "dominant", "clients": 20}, seed, validation=0)
        has, groups = owned(examples, division), groups_of(division)
        assert groups.tolist() == [g for g in range(4) for _ in range(5)]
        assert len(set(has.sum(1))) == 1
        assert has.sum(1)[0] == pytest.approx(size, rel=0.03)
        assert_disjoint(division)
        # a group's own classes stand out: every client has more than the common 0.2 / C of exactly these
        own = has > 2 * 0.2 * has.sum(1, keepdims=True) / classes
        assert (own.sum(1) == each).all()
        for group in range(4):
            assert (own[groups == group] == own[groups == group][0]).all()
        shared = own[::5].sum(0)
        assert shared.sum() == 4 * each
        assert shared.max() == (1 if 4 * each <= classes else 2)
        expected = 0.8 + 0.2 * each / classes
        part = (has * own).sum(1) / has.sum(1)
        assert np.abs(part - expected).max() < 0.02


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(30, 90), min_size=2, max_size=12),
    groups=st.integers(1, 4),
    more=st.integers(0, 5),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_any_size(make_examples: Make, sizes: list[int], groups: int, more: int, share: float, seed: int) -> None:
    examples = make_examples(sizes)
    k = groups + more
    for variant in ("paper", "released"):
        partition = {"rule": "dominant", "clients": k, "groups": groups, "dominant_share": share, "variant": variant}
        division = divide(examples, partition, seed, validation=0)
        has = owned(examples, division)
        assert_disjoint(division)
        assert_same(division, divide(examples, partition, seed, validation=0))
        assert np.ptp(has.sum(1)) <= (0 if variant == "paper" else 3)
        if variant == "released":
            assert has.sum() == len(examples)
        blocks = np.bincount(groups_of(division), minlength=groups)
        assert blocks.sum() == k
        assert np.ptp(blocks) <= 1


def test_released(make_examples: Make) -> None:
    """80 % sorted and cut into four: 2.5 of ten classes for each group; every example is used."""
    examples = make_examples([600] * 10)
    for seed in range(5):
        partition = {"rule": "dominant", "clients": 20, "variant": "released"}
        division = divide(examples, partition, seed)
        has = owned(examples, division)
        assert sorted(joined(division.train, division.validation, division.test).tolist()) == list(range(6000))
        assert np.ptp(has.sum(1)) <= 1
        by_group = np.add.reduceat(has, [0, 5, 10, 15])
        # 480 of each class on average in the sorted part, and 120 / 4 of each in the rest
        nominal = np.kron(np.eye(4), np.ones(25)).reshape(4, 10, 10).sum(2) / 10  # part of each class in each quarter
        assert np.abs(by_group - (480 * nominal + 30)).max() < 90


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("official", [False, True])
def test_test_data_follow_the_training_data(make_examples: Make, variant: str, official: bool) -> None:
    """Also where the paper's variant leaves some of a class unused: the same part of the test set is."""
    examples = make_examples([500] * 20, [100] * 20)
    partition = {"rule": "dominant", "clients": 12, "variant": variant}
    sizes = {"test": "official"} if official else {"test": 1 / 6}
    division = divide(examples, partition, validation=0, **sizes)
    train, test = counts(examples, division.train), counts(examples, division.test)
    assert np.abs(train / train.sum(1, keepdims=True) - test / test.sum(1, keepdims=True)).max() < 0.02
    assert test.sum() / train.sum() == pytest.approx(0.2, rel=0.03)
    if official:
        assert min(rows.min() for rows in division.test) >= examples.boundary  # type: ignore[operator]


@pytest.mark.parametrize(("clients", "each", "classes"), [(3, 4, 5), (1, 0, 3), (4, 7, 2), (5, 1, 9), (2, 12, 12)])
def test_rota(clients: int, each: int, classes: int) -> None:
    turns = [[0] * classes for _ in range(clients)]
    for turn in range(clients * each):
        turns[turn // each][turn % classes] += 1
    assert rota(clients, each, classes).tolist() == turns


def test_groups_are_recorded() -> None:
    section = {"source": "digits", "partition": {"rule": "dominant", "clients": 10, "groups": 4}}
    federation = build_federation(section, seed=0)
    assert federation.source["clients"]["group"] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert federation.select([9, 0]).source["clients"]["group"] == [3, 0]


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"dominant_classes": 5}, "dominant_classes is 5, but 'toy' has only 4 classes: ask for 4 or fewer"),
        ({"clients": 200}, r"Class \d of 'toy' has 10 examples, too few for 200 clients of equal size: ask for fewer"),
    ],
)
def test_impossible_groups(make_examples: Make, partition: dict[str, Any], message: str) -> None:
    examples = make_examples([10, 10, 10, 190])
    with pytest.raises(CoterieError, match=message):
        divide(examples, {"rule": "dominant", "clients": 4, **partition})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 3}, "federation.partition: 3 clients cannot form 4 groups; ask for fewer groups"),
        ({"variant": "released", "dominant_classes": 2}, "dominant_classes belongs to the variant paper"),
        ({"variant": "realeased"}, "federation.partition.variant: .*'paper' or 'released'"),
        ({"dominant_share": 1.2}, "federation.partition.dominant_share: .*less than or equal to 1"),
        ({"dominant_class": 2}, r"Unknown key federation\.partition\.dominant_class\. Did you mean dominant_classes\?"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    section = {"source": "digits", "partition": {"rule": "dominant", "clients": 8, **options}}
    with pytest.raises(CoterieError, match=message):
        build_federation(section, seed=0)
