"""The rules label-groups and dirichlet-groups: FedeRiCo's splits by disjoint groups of labels."""

from __future__ import annotations

import time
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
from coterie.federation.partition.label_groups import cut_labels

Make = Callable[..., Examples]


def test_by_hand(make_examples: Make) -> None:
    """Three clients, two groups of one label: the group of two clients has room for 15 each, so all have 15."""
    examples = make_examples([30, 30])
    for seed in range(20):
        division = divide(examples, {"rule": "label-groups", "clients": 3, "groups": 2}, seed)
        has = owned(examples, division)
        assert sorted(has.tolist()) in ([[0, 15], [0, 15], [15, 0]], [[0, 15], [15, 0], [15, 0]])
        assert division.columns["group"] in ([0, 0, 1], [0, 1, 1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.integers(40, 90), min_size=4, max_size=12),
    groups=st.integers(1, 4),
    more=st.integers(0, 6),
    fraction=st.floats(0.2, 1),
    seed=st.integers(0, 2**32),
)
def test_any_size(make_examples: Make, sizes: list[int], groups: int, more: int, fraction: float, seed: int) -> None:
    examples = make_examples(sizes)
    k = groups + more
    partition = {"rule": "label-groups", "clients": k, "groups": groups, "fraction": fraction}
    division = divide(examples, partition, seed)
    assert_same(division, divide(examples, partition, seed))
    assert_disjoint(division)
    has, group = owned(examples, division), np.array(division.columns["group"])
    assert sorted(set(group.tolist())) == list(range(groups))  # every group has a client
    assert len(set(has.sum(1).tolist())) == 1
    assert has.sum() <= fraction * len(examples) + 0.5
    labels = [set(np.flatnonzero(has[group == g].sum(0)).tolist()) for g in range(groups)]
    assert sum(map(len, labels)) == len(set().union(*labels))  # disjoint
    assert max(map(len, labels)) <= -(-len(sizes) // groups)
    # as many as the fraction or the most crowded group allow: one more each would be too many
    size = int(has.sum(1)[0]) + 1
    smallest = sum(sorted(sizes)[: len(sizes) // groups])
    assert size * k > fraction * len(examples) - 0.5 or size * np.bincount(group).max() > smallest


def test_ten_per_cent_of_the_training_set(make_examples: Make) -> None:
    """FedeRiCo's CIFAR-10 at a tenth of its size: 8 clients of 62 examples, 80/20, from the training set only."""
    examples = make_examples([500] * 10, [100] * 10)
    for groups in (2, 3, 4):
        partition = {
            "rule": "label-groups", "clients": 8, "groups": groups, "fraction": 0.1, "training_only": True,
        }  # fmt: skip
        division = divide(examples, partition, validation=0, test=0.2)
        assert {len(rows) for rows in division.train} == {50}
        assert {len(rows) for rows in division.test} == {12}
        assert joined(division.train, division.test).max() < 5000
        train, test = counts(examples, division.train), counts(examples, division.test)
        assert (train[test > 0] > 0).all()
        assert np.abs(train / 50 - test / 12).max() < 1 / 12  # less than one image


def test_official_test_set_follows(make_examples: Make) -> None:
    """Clients that use a tenth of the training set get a tenth of the test set, of the same labels."""
    examples = make_examples([500] * 6, [100] * 6)
    partition = {"rule": "label-groups", "clients": 4, "groups": 3, "fraction": 0.1}
    division = divide(examples, partition, validation=0, test="official")
    train, test = counts(examples, division.train), counts(examples, division.test)
    assert {len(rows) for rows in division.train} == {75}
    assert np.abs(test - train / 5).max() <= 1.2


def test_clients_join_groups_at_random(make_examples: Make) -> None:
    """Of 6 clients in 2 groups the first has 1 + Binomial(4, 1/2)."""
    examples = make_examples([40, 40])
    first = [
        divide(examples, {"rule": "label-groups", "clients": 6, "groups": 2, "fraction": 0.3}, seed).columns["group"]
        for seed in range(400)
    ]
    sizes = np.bincount([list(groups).count(0) for groups in first], minlength=6)
    assert sizes[0] == sizes[6:].sum() == 0
    np.testing.assert_allclose(sizes[1:6] / 400, np.array([1, 4, 6, 4, 1]) / 16, atol=0.075)


def test_labels_are_cut_at_random_into_like_sets(make_examples: Make) -> None:
    examples = make_examples([5, 5, 0, 5, 5, 5])
    cuts = [cut_labels(examples, examples.all_rows, 2, np.random.default_rng(seed)) for seed in range(200)]
    assert all(of[2] == -1 for of in cuts)  # no example of label 2
    assert all(sorted(np.bincount(of[of >= 0]).tolist()) == [2, 3] for of in cuts)
    together = np.mean([of[0] == of[1] for of in cuts])
    assert together == pytest.approx(0.4, abs=0.11)  # 3/5 2/4 + 2/5 1/4


# Dirichlet


def test_dirichlet_groups_have_the_moments_of_the_distribution(make_examples: Make) -> None:
    """A group's shares have the variance (1/K)(1 - 1/K)/(K alpha + 1), and its labels go together."""
    examples = make_examples([1000, 1000, 1000, 1000])
    shares = []
    for seed in range(150):
        partition = {"rule": "dirichlet-groups", "clients": 5, "groups": 2, "alpha": 0.7, "min_size": 1}
        has = owned(examples, divide(examples, partition, seed, validation=0, test=0.1)) / 1000
        pairs = [[0, a] for a in (1, 2, 3)]
        pair = min(pairs, key=lambda p: np.abs(has[:, p[0]] - has[:, p[1]]).sum())
        rest = [c for c in range(4) if c not in pair]
        assert np.abs(has[:, pair[0]] - has[:, pair[1]]).max() < 0.1
        shares += [has[:, pair].mean(1), has[:, rest].mean(1)]
    np.testing.assert_allclose(np.mean(shares, axis=0), 0.2, atol=0.05)
    assert np.var(shares) == pytest.approx(0.2 * 0.8 / (5 * 0.7 + 1), rel=0.15)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(30, 90), min_size=4, max_size=10),
    clients=st.integers(1, 8),
    alpha=st.sampled_from([1e-300, 1e-12, 0.01, 0.4, 100.0]),
    fraction=st.floats(0.7, 1),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_groups_of_any_size(
    make_examples: Make, sizes: list[int], clients: int, alpha: float, fraction: float, seed: int
) -> None:
    examples = make_examples(sizes)
    partition = {"rule": "dirichlet-groups", "clients": clients, "alpha": alpha, "fraction": fraction}
    division = divide(examples, partition, seed)
    assert_same(division, divide(examples, partition, seed))
    assert_disjoint(division)
    has = owned(examples, division)
    assert has.sum(1).min() >= 10
    assert has.sum() == round(fraction * len(examples))


def test_500_clients_at_a_tiny_alpha_in_bounded_time(make_examples: Make) -> None:
    examples = make_examples([5000] * 10, [1000] * 10)
    started = time.process_time()
    partition = {"rule": "dirichlet-groups", "clients": 500, "alpha": 0.01, "min_size": 20, "training_only": True}
    division = divide(examples, partition)
    assert time.process_time() - started < 10
    assert owned(examples, division).sum(1).min() >= 20
    assert joined(division.train, division.validation, division.test).max() < 50_000


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"rule": "label-groups", "groups": 5}, "groups is 5, but 'toy' has only 4 classes: ask for 4 or fewer"),
        ({"rule": "dirichlet-groups", "groups": 5, "min_size": 1}, "groups is 5, but 'toy' has only 4 classes"),
        ({"rule": "label-groups", "clients": 50}, "50 clients in 4 groups get no example each of the 40 of 'toy'"),
        ({"rule": "label-groups", "fraction": 0.05}, "8 clients in 4 groups get no example each .* larger partition.frac"),
        ({"rule": "label-groups", "fraction": 0.2}, "'client-00' has 1 example, which is too few"),
        ({"rule": "dirichlet-groups", "fraction": 0.5}, "need 80, but 20 of 'toy' are used: ask for fewer"),
    ],
)  # fmt: skip
def test_impossible_groups(make_examples: Make, partition: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        divide(make_examples([10, 10, 10, 10]), {"clients": 8, **partition})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "label-groups", "clients": 3}, "federation.partition: 3 clients cannot fill 4 groups; ask for fewer"),
        ({"rule": "label-groups", "fraction": 0}, "federation.partition.fraction: .*greater than 0"),
        ({"rule": "label-groups", "fracton": 0.1}, r"federation\.partition\.fracton\. Did you mean fraction\?"),
        ({"rule": "label-groups", "alpha": 0.4}, r"Unknown key federation\.partition\.alpha"),
        ({"rule": "dirichlet-groups", "alpha": 0}, "federation.partition.alpha: .*greater than 0"),
        ({"rule": "dirichlet-groups", "group": 2}, r"federation\.partition\.group\. Did you mean groups\?"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_federation({"source": "digits", "partition": {"clients": 8, **options}}, seed=0)


def test_groups_are_recorded() -> None:
    section = {"source": "digits", "partition": {"rule": "label-groups", "clients": 6, "groups": 3}}
    federation = build_federation(section, seed=0)
    groups = federation.source["clients"]["group"]
    assert groups == sorted(groups)
    assert set(groups) == {0, 1, 2}
