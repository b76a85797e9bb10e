"""Transfer against LOCAL, worked out by hand from the definitions of FEDORA and PGFed."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.evaluation import align, individual_gain, ptr, ptr_mae, r_acc, r_mae

shares = st.lists(
    st.tuples(st.integers(0, 40).map(lambda i: i / 40), st.integers(1, 40).map(lambda i: i / 40)), min_size=1
)


def test_r_acc_is_the_mean_of_the_ratios_and_not_the_ratio_of_the_means() -> None:
    local, ours = [0.4, 0.8], [0.6, 0.6]
    # (+0.2 / 0.4 - 0.2 / 0.8) / 2 = (0.5 - 0.25) / 2; the means are equal, so their ratio would say 0.
    assert r_acc(ours, local).value == pytest.approx(0.125, abs=1e-15)


def test_r_acc_leaves_out_and_counts_clients_on_which_local_gets_nothing_right() -> None:
    value, left_out = r_acc([0.5, 0.3, 0.0], [0.0, 0.2, 0.0])
    assert value == pytest.approx(0.5, abs=1e-15)
    assert left_out == 2
    nothing = r_acc([0.5], [0.0])
    assert math.isnan(nothing.value)
    assert nothing.left_out == 1


def test_r_mae_turns_the_sign_so_that_larger_is_better() -> None:
    value, left_out = r_mae([1.0, 3.0, 2.0], [2.0, 2.0, 0.0])
    assert value == pytest.approx((0.5 - 0.5) / 2, abs=1e-15)
    assert left_out == 1
    assert r_mae([0.5], [1.0]).value == 0.5
    assert r_mae([1.5], [1.0]).value == -0.5


def test_ptr_counts_ties_as_positive() -> None:
    assert ptr([0.5, 0.5, 0.4, 0.6], [0.5, 0.6, 0.3, 0.6]) == 3 / 4
    assert ptr_mae([0.5, 0.5, 0.4, 0.6], [0.5, 0.6, 0.3, 0.6]) == 3 / 4
    assert ptr_mae([0.7], [0.6]) == 0
    assert math.isnan(ptr([], []))


def test_individual_gain_is_in_percentage_points_with_the_population_deviation() -> None:
    gain = individual_gain([0.7, 0.5], [0.6, 0.6])
    np.testing.assert_allclose(gain, [10, -10], atol=1e-12)
    assert gain.std() == pytest.approx(10)  # ddof = 0; ddof = 1 would give 14.1


@given(shares)
def test_local_compared_with_itself(pairs: list[tuple[float, float]]) -> None:
    local = [alone for _, alone in pairs]
    assert r_acc(local, local) == (0, 0)
    assert ptr(local, local) == 1
    assert not individual_gain(local, local).any()


@given(shares)
def test_the_order_of_clients_does_not_matter(pairs: list[tuple[float, float]]) -> None:
    ours, local = zip(*pairs, strict=True)
    assert ptr(ours[::-1], local[::-1]) == ptr(ours, local)
    assert r_acc(ours[::-1], local[::-1]).value == pytest.approx(r_acc(ours, local).value, abs=1e-12)


def test_a_client_without_a_value_is_left_out_on_both_sides() -> None:
    ours, local = [0.6, math.nan, 0.9], [0.5, 0.5, math.nan]
    assert r_acc(ours, local).value == pytest.approx(0.2, abs=1e-15)
    assert ptr(ours, local) == 1


def test_vectors_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot compare"):
        ptr([0.5, 0.6], [0.5])


def test_align_goes_by_client_name() -> None:
    ours, local = align(pd.Series([1.0, 2.0], index=["b", "a"]), pd.Series([10.0, 20.0], index=["a", "b"]))
    np.testing.assert_array_equal(ours, [1, 2])
    np.testing.assert_array_equal(local, [20, 10])


def test_align_names_the_client_that_one_side_lacks() -> None:
    with pytest.raises(CoterieError, match="client 'c' has a result on one side only"):
        align(pd.Series([1.0, 2.0], index=["a", "c"]), pd.Series([1.0], index=["a"]))


def test_align_names_the_client_that_comes_twice() -> None:
    with pytest.raises(CoterieError, match="'a' has more than one result"):
        align(pd.Series([1.0, 2.0], index=["a", "a"]), pd.Series([1.0], index=["a"]))
