"""Aggregation weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.relations import mean_self_weight, normalised


def test_sizes_become_shares() -> None:
    expected = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    torch.testing.assert_close(normalised(torch.tensor([2, 0, 6])), expected, rtol=0, atol=0)


def test_each_row_is_normalised_alone() -> None:
    weights = normalised(torch.tensor([[1, 3], [5, 5]]))
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64))


def test_an_empty_cohort_has_no_weights() -> None:
    assert normalised(torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize("sizes", [[0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_impossible_sizes_are_refused(sizes: list[float]) -> None:
    with pytest.raises(CoterieError):
        normalised(torch.tensor(sizes))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30).filter(any))
def test_weights_lie_on_the_simplex(sizes: list[int]) -> None:
    weights = normalised(torch.tensor(sizes))
    assert bool((weights >= 0).all())
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)


def test_self_weight_of_those_who_were_met() -> None:
    weights = torch.tensor([[0.2, 0.8, 0.0], [0.0, 1.0, 0.0], [0.5, 0.1, 0.4]], dtype=torch.float64)
    assert mean_self_weight(weights, torch.tensor([True, False, True])) == pytest.approx(0.3)
    assert mean_self_weight(weights, torch.zeros(3, dtype=torch.bool)) == 1.0
