"""The rule cyclic: FEDORA's two classes a client, with few training images."""

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

Make = Callable[..., Examples]


def test_fedora(make_examples: Make) -> None:
    """CIFAR-10's sizes: 10 of each class to train, shares of 1,000 a class to validate, 128 images to test."""
    examples = make_examples([5000] * 10, [1000] * 10)
    for seed in range(3):
        division = divide(examples, {"rule": "cyclic", "clients": 10}, seed, test="official")
        train, validation, test = (counts(examples, getattr(division, s)) for s in ("train", "validation", "test"))
        for i in range(10):
            assert np.flatnonzero(train[i]).tolist() == sorted([2 * i % 10, (2 * i + 1) % 10])
        assert set(train[train > 0].tolist()) == {10}
        assert (test.sum(1) == 128).all()
        assert np.array_equal(test > 0, train > 0)
        # the two owners of a class have 0.4 .. 0.6 each before normalisation
        part = validation / validation.sum(0)
        assert part[part > 0].min() >= 0.4 - 0.001
        assert part.max() <= 0.6 + 0.001
        assert np.ptp(part[part > 0]) > 0.02  # they do differ
        assert validation.sum() == pytest.approx(10_000, abs=10)
        # the 128 are in proportion to the shares
        assert np.abs(test / 128 - validation / validation.sum(1, keepdims=True)).max() < 0.01
        assert max(rows.max() for rows in division.train) < 50_000 <= min(rows.min() for rows in division.test)
        assert_disjoint(division)


def test_by_hand(make_examples: Make) -> None:
    """Two clients and four classes: everybody owns two classes alone."""
    examples = make_examples([20, 30, 40, 50])
    partition = {"rule": "cyclic", "clients": 2, "train_per_class": "all", "test_limit": "all"}
    assert owned(examples, divide(examples, partition)).tolist() == [[20, 30, 0, 0], [0, 0, 40, 50]]
    division = divide(examples, {**partition, "test_limit": 8, "train_per_class": 3}, validation=0, test=0.5)
    assert counts(examples, division.train).tolist() == [[3, 3, 0, 0], [0, 0, 3, 3]]
    assert counts(examples, division.test).tolist() == [[3, 5, 0, 0], [0, 0, 4, 4]]  # 8 in proportion 10 : 15, 20 : 25


def test_shares_are_uniform_and_normalised(make_examples: Make) -> None:
    """With the spread [1, 1] owners are equal; three owners of one class have a third each."""
    examples = make_examples([300])
    partition = {"rule": "cyclic", "clients": 3, "classes_per_client": 1, "train_per_class": "all"}
    assert owned(examples, divide(examples, {**partition, "spread": [1, 1]})).tolist() == [[100], [100], [100]]
    first = [owned(examples, divide(examples, partition, seed, test=0.1))[0, 0] / 300 for seed in range(200)]
    assert np.mean(first) == pytest.approx(1 / 3, abs=0.01)
    assert min(first) > 0.4 / 1.6 - 0.003
    assert max(first) < 0.6 / 1.4 + 0.003


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    classes=st.integers(2, 8),
    each=st.integers(1, 2),
    clients=st.integers(1, 12),
    limits=st.tuples(st.integers(1, 20) | st.just("all"), st.integers(1, 30) | st.just("all")),
    seed=st.integers(0, 2**32),
)
def test_any_size(
    make_examples: Make, classes: int, each: int, clients: int, limits: tuple[int | str, int | str], seed: int
) -> None:
    examples = make_examples([90] * classes, [60] * classes)
    partition = {
        "rule": "cyclic", "clients": clients, "classes_per_client": each,
        "train_per_class": limits[0], "test_limit": limits[1],
    }  # fmt: skip
    for test in (0.2, "official"):
        division = divide(examples, partition, seed, test=test)
        assert_same(division, divide(examples, partition, seed, test=test))
        assert_disjoint(division)
        train, tested = counts(examples, division.train), counts(examples, division.test)
        assert ((train > 0).sum(1) == each).all()
        assert (train[tested > 0] > 0).all()
        assert tested.sum(1).min() >= 1
        if limits[0] != "all":
            assert train.max() <= limits[0]
        if limits[1] != "all":
            assert tested.sum(1).max() <= limits[1]
        if limits == ("all", "all") and clients * each >= classes:
            everything = joined(division.train, division.validation, division.test)
            assert len(everything) == len(examples)


def test_classes_without_an_owner_are_not_used(make_examples: Make) -> None:
    examples = make_examples([50] * 6, [50] * 6)
    division = divide(examples, {"rule": "cyclic", "clients": 2}, test="official")
    assert owned(examples, division)[:, 4:].sum() == 0


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"clients": 2, "classes_per_client": 4}, "classes_per_client is 4, but 'toy' has only 3 classes: ask for 3"),
        ({"clients": 16}, "'client-.*' has . examples, which is too few"),
    ],
)
def test_impossible_cycles(make_examples: Make, partition: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        divide(make_examples([10, 10, 10]), {"rule": "cyclic", **partition})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spread": [0.6, 0.4]}, "federation.partition: spread is a lower and an upper limit above 0; .* is not"),
        ({"spread": [0, 1]}, "spread is a lower and an upper limit above 0"),
        ({"spread": [0.4]}, "federation.partition.spread"),
        ({"train_per_class": 0}, "federation.partition.train_per_class: .*greater than or equal to 1"),
        ({"test_limit": "none"}, "federation.partition.test_limit: .*'all'"),
        ({"test_limits": 3}, r"Unknown key federation\.partition\.test_limits\. Did you mean test_limit\?"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_federation({"source": "digits", "partition": {"rule": "cyclic", "clients": 5, **options}}, seed=0)
