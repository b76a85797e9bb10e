"""Clusters of clients: shares, random groups, k-means++, complete linkage, trees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.relations import (
    bipartition,
    cluster_shares,
    cosines,
    descend,
    membership,
    name_order,
    seed_centres,
    shuffled_groups,
    squared_distances,
)


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_names_give_an_order_that_numbers_do_not_matter_for() -> None:
    assert name_order(["b", "c", "a"]).tolist() == [2, 0, 1]


def test_membership_is_shared_in_equal_parts() -> None:
    nan = float("nan")
    expected = matrix([0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [nan] * 4)
    torch.testing.assert_close(membership(torch.tensor([1, 0, 1, -1])), expected, equal_nan=True)


def test_shares_add_up_to_one_in_each_cluster_and_to_nothing_in_an_empty_one() -> None:
    shares = cluster_shares(torch.tensor([2, 0, 2]), torch.tensor([1.0, 5.0, 3.0]).double(), 4)
    assert torch.equal(shares, matrix([0, 1, 0], [0, 0, 0], [0.25, 0, 0.75], [0, 0, 0]))


def test_random_groups_are_even_and_keep_to_the_names() -> None:
    names = ["d", "a", "e", "c", "b", "f", "g"]
    group = shuffled_groups(name_order(names), 3, np.random.default_rng(1))
    assert sorted(torch.bincount(group).tolist()) == [2, 2, 3]
    other = shuffled_groups(name_order(names[::-1]), 3, np.random.default_rng(1))
    assert torch.equal(other.flip(0), group)
    seen = {tuple(shuffled_groups(torch.arange(4), 2, np.random.default_rng(s)).tolist()) for s in range(60)}
    assert len(seen) == 6  # all ways to halve four clients


LINE = squared_distances(matrix([0.0], [1.0], [10.0], [10.5]))


def test_the_first_centre_is_any_point() -> None:
    chosen = [seed_centres(LINE, np.array([draw])).tolist() for draw in (0.0, 0.26, 0.51, 0.999999)]
    assert chosen == [[0], [1], [2], [3]]


def test_further_centres_are_drawn_by_squared_distance() -> None:
    # from point 0: 0, 1, 100, 110.25
    total = 211.25
    for draw, second in ((0.0, 1), (0.99 / total, 1), (1.01 / total, 2), (100.9 / total, 2), (101.1 / total, 3)):
        assert seed_centres(LINE, np.array([0.0, draw])).tolist() == [0, second]
    # from 0 and 2 together: 0, 1, 0, 0.25
    assert seed_centres(LINE, np.array([0.0, 0.4, 0.79])).tolist() == [0, 2, 1]
    assert seed_centres(LINE, np.array([0.0, 0.4, 0.81])).tolist() == [0, 2, 3]


def test_centres_that_there_are_already_count() -> None:
    nearest = torch.tensor([0.0, 1.0, 3.0, 0.0]).double()
    assert seed_centres(LINE, np.array([0.2]), nearest).tolist() == [1]
    assert seed_centres(LINE, np.array([0.3]), nearest).tolist() == [2]
    assert nearest.tolist() == [0, 1, 3, 0]
    assert seed_centres(LINE, np.array([0.5]), torch.zeros(4)).tolist() == []


def test_no_point_is_drawn_twice_and_equal_points_once() -> None:
    points = squared_distances(matrix([0.0], [0.0], [1.0], [1.0 + 1e-9]))
    draws = np.random.default_rng(0).random(10)
    assert len(seed_centres(points, draws)) == 3
    assert len(seed_centres(points, draws, equal=1e-12)) == 2
    assert len(seed_centres(points[:2, :2], draws)) == 1


def best_partition(similarity: Tensor) -> set[tuple[int, ...]]:
    """Agglomerative clustering by its definition: join the two groups whose least similar members are most similar."""
    groups = [(i,) for i in range(len(similarity))]
    while len(groups) > 2:
        pairs = itertools.combinations(range(len(groups)), 2)
        i, j = max(pairs, key=lambda p: min(float(similarity[a, b]) for a in groups[p[0]] for b in groups[p[1]]))
        groups = [g for n, g in enumerate(groups) if n not in (i, j)] + [tuple(sorted(groups[i] + groups[j]))]
    return set(groups)


@pytest.mark.parametrize("seed", range(5))
def test_bipartition_is_complete_linkage(seed: int) -> None:
    similarity = cosines(torch.randn(9, 3, generator=torch.Generator().manual_seed(seed)))
    second = bipartition(similarity)
    halves = {tuple((second == half).nonzero().flatten().tolist()) for half in (False, True)}
    assert halves == best_partition(similarity)
    assert not second[0]


def test_bipartition_makes_two_groups_whatever_the_ties() -> None:
    for similarity in (torch.ones(4, 4), torch.eye(3), torch.zeros(5, 5)):
        assert 0 < int(bipartition(similarity).sum()) < len(similarity)
    assert bipartition(torch.eye(2)).tolist() == [False, True]


def test_opposite_directions_are_parted() -> None:
    updates = matrix([1.0, 0.1], [-2.0, 0.1], [0.5, -0.1], [-0.3, 0.0], [0.0, 0.0])
    second = bipartition(cosines(updates))  # an update of zero has no direction and may go anywhere
    assert second[:4].tolist() == [False, True, False, True]


def test_a_tree_is_descended_to_its_leaves() -> None:
    # 0 -> (1, 2), 2 -> (3, 4)
    children = torch.tensor([[1, 2], [-1, -1], [3, 4], [-1, -1], [-1, -1]])
    similarity = matrix(
        [0, 0.9, 0.1, 0, 1], [0, 0.1, 0.9, 0, 1], [0, 0.1, 0.9, 1, 0], [0, 0.5, 0.5, 0, 1], [0, 1, 0, 0.5, 0.5]
    )
    start = torch.tensor([0, 0, 0, 0, 2])
    assert descend(children, start, similarity).tolist() == [1, 4, 3, 1, 3]
    assert start.tolist() == [0, 0, 0, 0, 2]
    assert descend(torch.tensor([[-1, -1]]), torch.tensor([0, 0]), torch.zeros(2, 1)).tolist() == [0, 0]
