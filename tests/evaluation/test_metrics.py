"""Metrics over clients, each against numbers worked out by hand."""

import math

import numpy as np
import pytest

from coterie.evaluation import macro, rounds_to_target, weighted, worst, worst_decile

NAN = math.nan


def test_macro_counts_every_client_once_and_weighted_counts_examples() -> None:
    accuracy, n = [0.5, 1.0], [30, 10]
    assert macro(accuracy) == 0.75
    assert weighted(accuracy, n) == 25 / 40  # 15 + 10 of 40 images


def test_missing_values_are_left_out() -> None:
    assert macro([0.2, NAN, 0.6]) == pytest.approx(0.4, abs=1e-15)
    assert macro([0.2, math.inf]) == 0.2
    assert weighted([0.5, NAN, 1.0], [10, 100, 30]) == 35 / 40
    assert worst([NAN, 0.4, 0.3]) == 0.3


@pytest.mark.parametrize("values", [[], [NAN, NAN]])
def test_without_any_client_everything_is_undefined(values: list[float]) -> None:
    n = [1] * len(values)
    for result in (macro(values), weighted(values, n), worst(values), worst_decile(values)):
        assert math.isnan(result)


def test_weights_of_zero_are_undefined() -> None:
    assert math.isnan(weighted([0.5], [0]))


def test_worst_is_the_smallest_accuracy_and_the_largest_error() -> None:
    assert worst([0.9, 0.2, 0.5]) == 0.2
    assert worst([0.9, 0.2, 0.5], larger_is_better=False) == 0.9


@pytest.mark.parametrize(("clients", "count"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (36, 4)])
def test_worst_decile_is_the_mean_over_a_tenth_rounded_up(clients: int, count: int) -> None:
    values = np.random.default_rng(0).permutation(clients).astype(float)  # 0 ... K-1 in some order
    assert worst_decile(values) == (count - 1) / 2
    assert worst_decile(values, larger_is_better=False) == clients - 1 - (count - 1) / 2


def test_rounds_to_target_is_the_first_round_that_reaches_it() -> None:
    rounds, accuracy = [0, 10, 20, 30], [0.1, 0.69, 0.7, 0.6]
    assert rounds_to_target(rounds, accuracy, 0.7) == 20  # equality counts, a later fall does not matter
    assert rounds_to_target(rounds, accuracy, 0.71) is None
    assert rounds_to_target(rounds[::-1], accuracy[::-1], 0.5) == 10
    assert rounds_to_target([], [], 0.5) is None


def test_rounds_to_target_forgives_rounding_but_nothing_visible() -> None:
    mean = sum([0.1] * 10) / 10  # 0.09999999999999999
    assert mean < 0.1
    assert rounds_to_target([3], [mean], 0.1) == 3
    assert rounds_to_target([3], [0.1 - 1e-9], 0.1) is None


def test_rounds_to_an_error_counts_downwards() -> None:
    assert rounds_to_target([1, 2, 3], [0.9, 0.5, 0.4], 0.5, larger_is_better=False) == 2
    assert rounds_to_target([1, 2], [NAN, 0.6], 0.5, larger_is_better=False) is None
