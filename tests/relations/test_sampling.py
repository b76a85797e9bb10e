"""Epsilon-greedy choice of neighbours."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.relations import epsilon_greedy

WEIGHTS = np.array([0.1, 0.4, 0.05, 0.3, 0.15])


def chosen(weights: np.ndarray, own: int, count: int, epsilon: float, draws: int) -> np.ndarray:
    """``(draws, count)`` choices, each with a generator of its own."""
    return np.array([epsilon_greedy(weights, own, count, epsilon, np.random.default_rng(d)) for d in range(draws)])


def assert_uniform(found: np.ndarray, of: int) -> None:
    """Counts of ``of`` equally probable outcomes, by chi-square at a level that fixed seeds pass for certain."""
    _, counts = np.unique(found, return_counts=True)
    assert len(counts) == of
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@given(st.integers(0, 2**31 - 1), st.integers(1, 9), st.integers(0, 12), st.sampled_from([0.0, 0.3, 1.0]))
@settings(deadline=None, max_examples=200)
def test_others_only_once_each(seed: int, K: int, count: int, epsilon: float) -> None:
    draw = np.random.default_rng(seed)
    own, weights = int(draw.integers(K)), draw.integers(0, 3, K) / 3.0
    weights[own] = 5.0  # the asker's own weight never matters
    before = weights.copy()
    found = epsilon_greedy(weights, own, count, epsilon, draw)
    assert len(found) == min(count, K - 1)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(K)) - {own}
    assert (weights == before).all()


@pytest.mark.parametrize(
    ("own", "order"), [(0, [1, 3, 4, 2]), (1, [3, 4, 0, 2]), (2, [1, 3, 4, 0]), (3, [1, 4, 0, 2]), (4, [1, 3, 0, 2])]
)
def test_without_exploring_the_largest_come_in_order(own: int, order: list[int]) -> None:
    for count in range(6):
        for seed in range(5):
            assert epsilon_greedy(WEIGHTS, own, count, 0.0, np.random.default_rng(seed)) == order[:count]


def test_ties_are_broken_uniformly() -> None:
    weights = np.array([0.2, 0.2, 0.9, 0.2, 0.2, 0.1])
    found = chosen(weights, 0, 3, 0.0, 3000)
    assert (found[:, 0] == 2).all()
    assert set(found[:, 1]) == set(found[:, 2]) == {1, 3, 4}
    assert_uniform(found[:, 1], 3)
    assert_uniform(found[:, 1] * 10 + found[:, 2], 6)  # both slots together


def test_exploring_is_uniform() -> None:
    found = chosen(WEIGHTS, 1, 2, 1.0, 6000)
    assert_uniform(found[:, 0], 4)
    assert_uniform(found[:, 0] * 10 + found[:, 1], 12)


def test_each_slot_decides_for_itself() -> None:
    """P(best first) = 1 - e + e/4; if it went first, P(second best next) = 1 - e + e/3."""
    epsilon, draws = 0.4, 6000
    found = chosen(WEIGHTS, 0, 2, epsilon, draws)
    best = found[:, 0] == 1
    assert scipy.stats.binomtest(int(best.sum()), draws, 1 - epsilon + epsilon / 4).pvalue > 1e-3
    next_best = int((found[best, 1] == 3).sum())
    assert scipy.stats.binomtest(next_best, int(best.sum()), 1 - epsilon + epsilon / 3).pvalue > 1e-3


def test_the_generator_decides() -> None:
    one, again = (epsilon_greedy(WEIGHTS, 0, 4, 1.0, np.random.default_rng(3)) for _ in range(2))
    assert one == again
    assert len({tuple(row) for row in chosen(WEIGHTS, 0, 4, 1.0, 50)}) > 5
