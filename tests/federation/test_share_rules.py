from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dividing import counts, divide, joined, owned
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.examples import Examples
from coterie.federation.partition.dirichlet import Dirichlet, fill_up
from coterie.federation.partition.shares import allocate, deal, follow, stratified

Make = Callable[..., Examples]

RULE_CASES: list[dict[str, Any]] = [
    {"rule": "iid", "clients": 7},
    {"rule": "dirichlet", "clients": 7, "alpha": 0.3},
    {"rule": "dirichlet", "clients": 7, "alpha": 0.01, "cap": False},
    {"rule": "dirichlet", "clients": 7, "alpha": 100.0},
    {"rule": "pathological", "clients": 7, "classes_per_client": 2},
    {"rule": "pathological", "clients": 7, "classes_per_client": 3, "assignment": "shards"},
    {"rule": "shards", "clients": 7},
    {"rule": "shards", "clients": 7, "shards_per_client": 3},
    {"rule": "dominant", "clients": 7, "groups": 3, "variant": "released"},
    {"rule": "dirichlet-groups", "clients": 7, "groups": 2},
    {"rule": "dirichlet-groups", "clients": 7, "groups": 5, "alpha": 0.01},
]


@pytest.mark.parametrize("partition", RULE_CASES, ids=str)
def test_disjoint_complete_and_nobody_is_empty(make_examples: Make, partition: dict[str, Any]) -> None:
    examples = make_examples([60, 30, 45, 50, 40])
    division = divide(examples, partition)
    everything = joined(division.train, division.validation, division.test)
    assert sorted(everything.tolist()) == list(range(225))
    for split in (division.train, division.validation, division.test):
        assert len(split) == 7
        assert min(len(rows) for rows in split) >= 1


@pytest.mark.parametrize("partition", RULE_CASES, ids=str)
def test_official_test_set_follows_the_training_classes(make_examples: Make, partition: dict[str, Any]) -> None:
    examples = make_examples([120, 60, 90, 100, 80], [24, 12, 18, 20, 16])
    division = divide(examples, partition, test="official")
    assert sorted(joined(division.train, division.validation).tolist()) == list(range(450))
    assert sorted(joined(division.test).tolist()) == list(range(450, 540))
    owned = counts(examples, division.train) + counts(examples, division.validation)
    test = counts(examples, division.test)
    assert test.sum(1).min() >= 1
    assert (test[owned == 0] == 0).all()
    # a fifth of each class, apart from rounding and from the one example that a client without any is given
    assert np.abs(test - owned / 5).max() <= 2


@pytest.mark.parametrize("partition", RULE_CASES, ids=str)
def test_same_seed_same_division(make_examples: Make, partition: dict[str, Any]) -> None:
    examples = make_examples([60, 30, 45, 50, 40])
    first, second, other = (divide(examples, partition, seed) for seed in (3, 3, 4))
    for split in ("train", "validation", "test"):
        for a, b in zip(getattr(first, split), getattr(second, split), strict=True):
            assert np.array_equal(a, b)
    assert not np.array_equal(joined(first.train, first.test), joined(other.train, other.test))


def test_iid_shares_differ_by_one_at_most(make_examples: Make) -> None:
    division = divide(make_examples([100, 100, 30]), {"rule": "iid", "clients": 7})
    totals = [sum(len(split[i]) for split in (division.train, division.validation, division.test)) for i in range(7)]
    assert max(totals) - min(totals) == 1


def test_iid_clients_look_alike(make_examples: Make) -> None:
    examples = make_examples([2000, 2000])
    ones = counts(examples, divide(examples, {"rule": "iid", "clients": 4}).train)[:, 1] / 600
    assert np.abs(ones - 0.5).max() < 0.08  # more than four standard deviations


def test_fractions_and_numbers(make_examples: Make) -> None:
    examples = make_examples([50, 50])
    division = divide(examples, {"rule": "iid", "clients": 2}, train=0.4, validation=0.2, test=0.4)
    assert [len(split[0]) for split in (division.train, division.validation, division.test)] == [20, 10, 20]
    division = divide(examples, {"rule": "iid", "clients": 2}, train=12, validation=0, test=7)
    assert [len(split[1]) for split in (division.train, division.validation, division.test)] == [12, 0, 7]


def test_splits_of_a_client_have_like_classes(make_examples: Make) -> None:
    examples = make_examples([100, 60, 40])
    division = divide(examples, {"rule": "iid", "clients": 1})
    assert counts(examples, division.test).tolist() == [[20, 12, 8]]
    assert counts(examples, division.validation).tolist() == [[20, 12, 8]]


def test_no_client_is_tested_on_a_class_it_cannot_learn(make_examples: Make) -> None:
    examples = make_examples([40, 40, 40, 40, 40, 40])
    for seed in range(10):
        division = divide(examples, {"rule": "dirichlet", "clients": 8, "alpha": 0.2}, seed)
        train, test = counts(examples, division.train), counts(examples, division.test)
        assert (train[test > 0] > 0).all()


def test_regression_shares(make_examples: Make) -> None:
    inputs = torch.rand(30, 2)
    examples = Examples("curve", inputs, inputs.sum(1, keepdim=True), classes=1, task="regression")
    division = divide(examples, {"rule": "iid", "clients": 3})
    assert sorted(joined(division.train, division.validation, division.test).tolist()) == list(range(30))
    for rule in ("dirichlet", "pathological", "dominant", "shards", "label-groups", "dirichlet-groups", "cyclic"):
        with pytest.raises(CoterieError, match=f"rule {rule} needs classes, but 'curve' is a regression"):
            divide(examples, {"rule": rule, "clients": 4})


# Dirichlet


@pytest.mark.parametrize("cap", [True, False])
def test_dirichlet_500_clients_at_alpha_001_in_bounded_time(make_examples: Make, cap: bool) -> None:
    examples = make_examples([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    started = time.process_time()
    division = divide(examples, {"rule": "dirichlet", "clients": 500, "alpha": 0.01, "cap": cap, "min_size": 20})
    assert time.process_time() - started < 10
    everything = joined(division.train, division.validation, division.test)
    assert len(np.unique(everything)) == len(everything) == len(examples)
    owned = sum(counts(examples, split) for split in (division.train, division.validation, division.test))
    assert owned.sum(1).min() >= 20
    assert (owned > 0).sum(1).mean() < 2  # filling up keeps the clients one-sided


@pytest.mark.parametrize("alpha", [1e-12, 1e-3, 0.1, 1.0, 1e6])
def test_dirichlet_draws_are_complete_for_every_alpha(alpha: float) -> None:
    rule = Dirichlet(clients=30, alpha=alpha)
    totals = np.array([300, 0, 17, 1000])
    drawn = rule._draw(totals, np.random.default_rng(0))
    assert drawn.min() >= 0
    assert drawn.sum(0).tolist() == totals.tolist()


def test_dirichlet_follows_alpha(make_examples: Make) -> None:
    examples = make_examples([300] * 10)

    def largest_share(alpha: float) -> float:
        owned = counts(examples, divide(examples, {"rule": "dirichlet", "clients": 10, "alpha": alpha}).train)
        return float((owned.max(1) / owned.sum(1)).mean())

    few, some, even = largest_share(0.05), largest_share(1.0), largest_share(1e4)
    assert few > some > even
    assert even < 0.13


def test_dirichlet_draw_has_the_moments_of_the_distribution() -> None:
    # Without cap and with many examples, a class's shares are a Dirichlet draw: variance (1/K)(1 - 1/K)/(K
    # alpha + 1)
    rule = Dirichlet(clients=5, alpha=0.7, cap=False)
    generator = np.random.default_rng(0)
    shares = np.concatenate([rule._draw(np.full(20, 10**6), generator) for _ in range(200)], axis=1) / 10**6
    np.testing.assert_allclose(shares.mean(1), 0.2, atol=0.02)
    np.testing.assert_allclose(shares.var(1), 0.2 * 0.8 / (5 * 0.7 + 1), rtol=0.1)


def test_cap_gives_no_further_classes_to_a_full_client() -> None:
    totals = np.full(10, 100)
    for seed in range(20):
        drawn = Dirichlet(clients=5, alpha=0.1)._draw(totals, np.random.default_rng(seed))
        before = np.cumsum(drawn, axis=1) - drawn
        assert (drawn[before >= 200] == 0).all()


@pytest.mark.parametrize(
    ("clients", "alpha", "min_size", "test", "draws"),
    [(20, 0.07, 20, 0.2, 20), (100, 0.07, 20, 0.2, 2000), (20, 0.1, 20, 0.2, 20), (100, 0.3, 40, 0.25, 20)],
    ids=["FedDWA 20", "FedDWA 100", "FedDWA code", "PGFed 100"],
)
def test_the_papers_dirichlet_is_the_first_draw_that_is_large_enough(
    make_examples: Make, clients: int, alpha: float, min_size: int, test: float, draws: int
) -> None:
    """CIFAR-10's sizes, official sets merged: no repair, no client below the minimum."""
    examples = make_examples([5000] * 10, [1000] * 10)
    partition = {"rule": "dirichlet", "clients": clients, "alpha": alpha, "min_size": min_size, "draws": draws}
    division = divide(examples, partition, seed=1, validation=0, test=test)
    generator = np.random.Generator(np.random.PCG64(1))
    generator.permutation(len(examples))
    drawn = np.zeros((clients, 10), dtype=int)
    while drawn.sum(1).min() < min_size:
        drawn = Dirichlet(clients=clients, alpha=alpha)._draw(np.full(10, 6000), generator)
    assert np.array_equal(counts(examples, division.train) + counts(examples, division.test), drawn)
    for train, tested in zip(division.train, division.test, strict=True):
        assert len(tested) == round(test * (len(train) + len(tested)))


def test_after_the_draws_small_clients_are_filled_up(make_examples: Make) -> None:
    examples = make_examples([600] * 10)
    partition = {"rule": "dirichlet", "clients": 100, "alpha": 0.01, "min_size": 20, "draws": 1}
    division = divide(examples, partition)
    sizes = owned(examples, division).sum(1)
    assert sizes.min() == 20
    assert (sizes == 20).sum() > 30


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=8),
    st.integers(1, 6),
)
def test_fill_up(rows: list[list[int]], minimum: int) -> None:
    counts = np.array(rows)
    if counts.sum() < minimum * len(rows):
        return
    filled = fill_up(counts, minimum)
    assert filled.min() >= 0
    assert filled.sum(1).min() >= minimum
    assert filled.sum(0).tolist() == counts.sum(0).tolist()
    large = counts.sum(1) <= minimum
    assert (filled.sum(1)[large] == minimum).all() or counts.sum(1).min() >= minimum
    if counts.sum(1).min() >= minimum:
        assert np.array_equal(filled, counts)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.data())
def test_allocate(weights: list[int], data: st.DataObject) -> None:
    capacity = np.array(weights)
    total = data.draw(st.integers(0, int(capacity.sum())))
    given_ = allocate(total, capacity, capacity)
    assert given_.sum() == total
    assert (given_ <= capacity).all()
    if capacity.sum():
        assert np.abs(given_ - total * capacity / capacity.sum()).max() < 1


def one_client_split(share: np.ndarray, of: np.ndarray, counts: np.ndarray, classes: int) -> list[np.ndarray]:
    """What `stratified` says, for one client and class by class: train, validation, test."""
    by_class = [list(share[of == c]) for c in range(classes)]
    parts = []
    for size, leave in ((counts[2], 1), (counts[1], 1), (counts[0], 0)):
        left = np.array([len(rows) for rows in by_class])
        spare = np.maximum(left - leave, 0)
        taken = allocate(int(size), left, spare if size <= spare.sum() else left)
        parts.append(np.array([rows.pop(0) for rows, m in zip(by_class, taken, strict=True) for _ in range(m)], int))
    return parts[::-1]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32))
def test_clients_are_split_together_as_one_by_one(clients: int, classes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    strata = generator.integers(0, classes, 100)
    cuts = np.sort(generator.choice(np.arange(3, 98), clients - 1, replace=False)) if clients > 1 else []
    shares = [share for share in np.split(generator.permutation(100), cuts) if len(share) > 2]
    thirds = [generator.multinomial(len(share), [0.5, 0.25, 0.25]) for share in shares]
    found = stratified(shares, strata, np.array(thirds), classes)
    for i, share in enumerate(shares):
        expected = one_client_split(share, strata[share], thirds[i], classes)
        for split, rows in zip(found, expected, strict=True):
            assert split[i].tolist() == rows.tolist()


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32))
def test_dealing_goes_round_by_class(clients: int, classes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, 80)
    rows = generator.permutation(1000)[:80]
    available = [list(rows[labels == c]) for c in range(classes)]
    counts = np.stack([generator.multinomial(len(of) // 2, [1 / clients] * clients) for of in available], axis=1)
    for share, of_client in zip(deal(counts, rows, labels), counts, strict=True):
        assert share.tolist() == [available[c].pop(0) for c, m in enumerate(of_client) for _ in range(m)]


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
def test_followers_get_their_part_of_each_class_and_of_all(clients: int, classes: int, seed: int) -> None:
    """Many classes of which everybody owns a little: no client loses an example in each of them."""
    generator = np.random.default_rng(seed)
    has = generator.integers(0, 9, (clients, classes)) + 1
    totals = has.sum(0) + generator.integers(0, 4, classes)  # some of the training set may be unused
    test = generator.integers(60, 90, classes)  # enough for everybody
    strata = np.repeat(np.arange(classes), test)
    shares = follow(has, totals, generator.permutation(len(strata)), strata, [f"client-{i}" for i in range(clients)])
    found = np.stack([np.bincount(strata[rows], minlength=classes) for rows in shares])
    quota = (test * has.sum(0) // totals) * has / has.sum(0)
    assert len(np.unique(np.concatenate(shares))) == found.sum() == (test * has.sum(0) // totals).sum()
    assert np.abs(found - quota).max() < 1
    assert np.abs((found - quota).sum(1)).max() < 3


# Pathological


@pytest.mark.parametrize(("classes", "each"), [(5, 1), (5, 2), (5, 5), (4, 3)])
def test_balanced_gives_exactly_so_many_classes(make_examples: Make, classes: int, each: int) -> None:
    examples = make_examples([120] * classes)
    division = divide(examples, {"rule": "pathological", "clients": 10, "classes_per_client": each})
    train, test = counts(examples, division.train), counts(examples, division.test)
    assert ((train > 0).sum(1) == each).all()
    assert np.array_equal(train > 0, test > 0)
    owners = (train > 0).sum(0)
    assert owners.max() - owners.min() <= 1


@pytest.mark.parametrize("each", [1, 2, 3])
def test_shards_limit_the_classes(make_examples: Make, each: int) -> None:
    examples = make_examples([200, 150, 120, 260, 90])
    for seed in range(5):
        partition = {
            "rule": "pathological",
            "clients": 12,
            "classes_per_client": each,
            "assignment": "shards",
        }
        division = divide(examples, partition, seed)
        owned = sum(counts(examples, split) for split in (division.train, division.validation, division.test))
        assert (owned > 0).sum(1).max() <= each
        assert owned.sum(0).tolist() == [200, 150, 120, 260, 90]


def test_shards_of_equal_classes_are_equal(make_examples: Make) -> None:
    examples = make_examples([100] * 10)
    division = divide(examples, {"rule": "pathological", "clients": 20, "assignment": "shards"})
    assert {len(rows) for rows in division.train} == {30}
    assert {len(rows) for rows in division.test} == {10}


@pytest.mark.data
@pytest.mark.parametrize("assignment", ["balanced", "shards"])
@pytest.mark.parametrize("test", [0.2, "official"])
def test_pathological_mnist(real_data: Callable[[str], Path], assignment: str, test: float | str) -> None:
    partition = {"rule": "pathological", "clients": 20, "classes_per_client": 2, "assignment": assignment}
    section = {"source": "mnist", "partition": partition, "test": test}
    federation = build_federation(section, seed=0, data_dir=real_data("mnist"))
    train, tested = federation.class_counts("train"), federation.class_counts("test")
    assert int((train > 0).sum(1).max()) == 2
    assert torch.equal(train > 0, tested > 0)
    assert sum(federation.split(s).total for s in ("train", "validation", "test")) == 70_000


@pytest.mark.data
def test_dirichlet_mnist_500_clients(real_data: Callable[[str], Path]) -> None:
    section = {"source": "mnist", "partition": {"rule": "dirichlet", "clients": 500, "alpha": 0.01}}
    federation = build_federation(section, seed=0, data_dir=real_data("mnist"))
    assert federation.k == 500
    assert federation.train.inputs.data_ptr() == federation.test.inputs.data_ptr()  # one copy of the images


# Errors


@pytest.mark.parametrize(
    ("partition", "sizes", "message"),
    [
        (
            {"rule": "iid", "clients": 41},
            {},
            "41 clients cannot share the 40 examples of 'toy': ask for fewer",
        ),
        (
            {"rule": "iid", "clients": 20},
            {},
            "'client-00' has 2 examples, .* too few for 1 to validate, 1 to test",
        ),
        (
            {"rule": "iid", "clients": 2},
            {"test": 25},
            "'client-00' has 20 examples, .* 4 to validate, 25 to test",
        ),
        ({"rule": "iid", "clients": 2}, {"test": "official"}, "'toy' has no official test set"),
        (
            {"rule": "dirichlet", "clients": 9},
            {},
            "9 clients of at least 10 examples .* need 90, but 'toy' has 40",
        ),
        (
            {"rule": "pathological", "clients": 9, "classes_per_client": 5},
            {},
            "is 5, but 'toy' has only 4 classes",
        ),
        (
            {"rule": "pathological", "clients": 3, "classes_per_client": 1},
            {},
            "hold at most 3 of the 4 classes",
        ),
        ({"rule": "pathological", "clients": 30}, {}, "30 clients of 2 classes need at least 60 examples"),
    ],
)
def test_impossible_shares(make_examples: Make, partition: dict[str, Any], sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        divide(make_examples([10, 10, 10, 10]), partition, **sizes)


def test_a_class_too_small_for_its_owners(make_examples: Make) -> None:
    partition = {"rule": "pathological", "clients": 8, "classes_per_client": 1}
    with pytest.raises(CoterieError, match="A class of 'toy' is too small for 8 clients of 1 classes"):
        divide(make_examples([1, 20]), partition)


def test_official_test_set_too_small(make_examples: Make) -> None:
    with pytest.raises(CoterieError, match="gets no test example: the official test set is too small for 5 clients"):
        divide(make_examples([50, 50], [2, 2]), {"rule": "iid", "clients": 5}, test="official")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"test": "rest"}, "test: rest is for the rule rotation"),
        ({"test": 0}, "must be above 0"),
        ({"train": 0.0}, "must be above 0"),
        ({"train": 0.8, "validation": 0.2, "test": 0.2}, "more than the whole"),
    ],
)
def test_sizes_that_make_no_sense(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_federation({"source": "digits", "partition": {"rule": "iid", "clients": 2}, **sizes}, seed=0)
