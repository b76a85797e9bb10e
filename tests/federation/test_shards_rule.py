"""The rule shards: equal pieces of the sorted data, the same for training and test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from dividing import assert_disjoint, assert_same, counts, divide, joined, owned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.examples import Examples

Make = Callable[..., Examples]


def test_by_hand(make_examples: Make) -> None:
    """Three classes of 8 in 4 shards of 6: the second reaches from class 0 into 1, the third from 1 into 2."""
    examples = make_examples([8, 8, 8])
    pieces = [[6, 0, 0], [2, 4, 0], [0, 4, 2], [0, 0, 6]]
    pairs = [[np.add(pieces[a], pieces[b]).tolist() for a, b in (two, other)] for two, other in (
        ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)),
    )]  # fmt: skip
    found = [owned(examples, divide(examples, {"rule": "shards", "clients": 2}, seed)).tolist() for seed in range(30)]
    assert all(sorted(of_seed) in [sorted(pair) for pair in pairs] for of_seed in found)
    assert len({str(sorted(of_seed)) for of_seed in found}) == 3  # every assignment occurs


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.integers(5, 60), min_size=2, max_size=8),
    clients=st.integers(1, 5),
    each=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_shares_are_equal_disjoint_and_of_few_classes(
    make_examples: Make, sizes: list[int], clients: int, each: int, seed: int
) -> None:
    examples = make_examples(sizes)
    partition = {"rule": "shards", "clients": clients, "shards_per_client": each}
    if sum(sizes) < 8 * clients * each:
        return
    division = divide(examples, partition, seed)
    assert sorted(joined(division.train, division.validation, division.test).tolist()) == list(range(len(examples)))
    has = owned(examples, division)
    assert np.ptp(has.sum(1)) <= each
    # a shard holds no more classes than one that starts at the last example of a class
    length = -(-len(examples) // (clients * each))
    most = max(
        sum(1 for _ in filter(None, np.bincount(np.sort(examples.labels)[a : a + length])))
        for a in range(len(examples) - length + 1)
    )
    assert (has > 0).sum(1).max() <= each * most
    assert_same(division, divide(examples, partition, seed))


@pytest.mark.parametrize(
    ("classes", "per_class", "limit"), [(10, 60, 2), (62, 20, 6), (100, 12, 8), (200, 8, 12)],
    ids=["CIFAR-10", "EMNIST", "CIFAR-100", "Tiny"],
)  # fmt: skip
def test_class_limits_of_the_published_settings(make_examples: Make, classes: int, per_class: int, limit: int) -> None:
    """40 shards of C classes reach over C/40 classes, which makes at most ceil(C/40) + 1 by their position."""
    examples = make_examples([5 * per_class] * classes, [per_class] * classes)
    for seed in range(5):
        partition = {"rule": "shards", "clients": 20}
        division = divide(examples, partition, seed, validation=0, test="official")
        train, test = counts(examples, division.train), counts(examples, division.test)
        assert (train > 0).sum(1).max() <= limit
        # Training and test classes are in the same proportions, apart from rounding
        assert np.array_equal(train > 0, test > 0)
        assert np.abs(test - train / 5).max() <= 1
        assert np.ptp(train.sum(1)) <= 2
        assert np.ptp(test.sum(1)) <= 2
        assert_disjoint(division)


def test_test_data_keep_to_the_training_classes_even_where_the_sets_are_balanced_differently(
    make_examples: Make,
) -> None:
    examples = make_examples([300, 100, 200], [20, 60, 40])
    for seed in range(10):
        division = divide(examples, {"rule": "shards", "clients": 3}, seed, test="official")
        train, test = counts(examples, division.train), counts(examples, division.test)
        assert (test[train == 0] == 0).all()
        assert test.sum() == 120


def test_digits() -> None:
    section = {"source": "digits", "partition": {"rule": "shards", "clients": 20}}
    federation = build_federation(section, seed=0)
    assert int(sum(federation.split(s).total for s in ("train", "validation", "test"))) == 1797
    assert int((federation.class_counts() > 0).sum(1).max()) <= 4


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"clients": 21}, "21 clients of 2 shards need at least 42 examples, but 'toy' has 40: ask for fewer clients"),
        ({"clients": 2, "shards_per_client": 21}, "2 clients of 21 shards need at least 42"),
        ({"clients": 20}, "'client-00' has 2 examples, which is too few"),
    ],
)
def test_impossible_shards(make_examples: Make, partition: dict[str, int], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        divide(make_examples([10, 10, 10, 10]), {"rule": "shards", **partition})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shard_per_client": 2},
            r"Unknown key federation\.partition\.shard_per_client\. Did you mean shards_per_client\?",
        ),
        ({"shards_per_client": 0}, "federation.partition.shards_per_client: .*greater than or equal to 1"),
        ({"shards_per_client": "two"}, "federation.partition.shards_per_client: .*integer"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_federation({"source": "digits", "partition": {"rule": "shards", "clients": 3, **options}}, seed=0)
