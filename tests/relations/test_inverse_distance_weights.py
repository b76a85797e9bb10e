"""FedDWA's weights: the solution of a quadratic program over the simplex."""

import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.relations import inverse_distance_weights

SEEDS = st.integers(0, 2**31 - 1)


def drawn(K: int, L: int, seed: int = 0) -> Tensor:
    return torch.rand(K, L, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 9 + 0.1


def close(actual: Tensor, expected: object, rtol: float = 0.0, atol: float = 1e-11) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("seed", range(4))
def test_they_solve_the_quadratic_program(seed: int) -> None:
    distance = drawn(3, 5, seed)
    weights = inverse_distance_weights(distance)
    for d, p in zip(distance.numpy(), weights, strict=True):
        found = scipy.optimize.minimize(
            lambda x, d=d: float((x * x * d).sum()), [0.2] * 5, jac=lambda x, d=d: 2 * x * d, bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1}, method="SLSQP", options={"ftol": 1e-15},
        )  # fmt: skip
        assert found.success
        close(p, found.x, atol=1e-6)


@given(SEEDS, st.integers(1, 8))
@settings(deadline=None, max_examples=40)
def test_conditions_of_the_optimum(seed: int, L: int) -> None:
    """On the simplex, all 2 p_j d_j are the same multiplier, and the minimum is 1 / sum 1/d."""
    distance = drawn(4, L, seed)
    p = inverse_distance_weights(distance)
    assert bool((p > 0).all())
    close(p.sum(1), [1.0] * 4)
    multiplier = 1 / (1 / distance).sum(1)
    close(p * distance, multiplier[:, None].expand_as(p), rtol=1e-10)
    close((p.square() * distance).sum(1), multiplier, rtol=1e-10)


def test_two_models() -> None:
    close(inverse_distance_weights(torch.tensor([[1.0, 3.0], [8.0, 2.0]])), [[0.75, 0.25], [0.2, 0.8]])


def test_one_model_has_the_whole_weight() -> None:
    for distance in (0.0, 1e-300, 5.0, 1e300):
        assert inverse_distance_weights(torch.tensor([[distance]], dtype=torch.float64)).tolist() == [[1.0]]


def test_zeros_share_the_weight() -> None:
    close(inverse_distance_weights(torch.tensor([[0.0, 2.0, 0.0, 5.0], [3.0, 0.0, 1.0, 1e9]])), [
        [0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0],
    ])  # fmt: skip


def test_equal_models_share_alike() -> None:
    close(inverse_distance_weights(torch.zeros(3, 4)), [[0.25] * 4] * 3, atol=0)
    close(inverse_distance_weights(torch.full((2, 5), 7.0)), [[0.2] * 5] * 2)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_has_no_weight(bad: float) -> None:
    close(inverse_distance_weights(torch.tensor([[bad, 1.0, 3.0], [0.0, bad, 0.0], [bad, bad, 4.0]])), [
        [0.0, 0.75, 0.25], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0],
    ])  # fmt: skip


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_never_among_the_kept(bad: float) -> None:
    close(inverse_distance_weights(torch.tensor([[bad, 4.0, bad, 1.0]]), topk=3), [[0.0, 0.2, 0.0, 0.8]])


@pytest.mark.parametrize(
    ("topk", "expected"),
    [
        (1, [0.0, 1.0, 0.0, 0.0]),
        (2, [0.0, 2 / 3, 0.0, 1 / 3]),
        (3, [1 / 7, 4 / 7, 0.0, 2 / 7]),
        (4, [2 / 15, 8 / 15, 1 / 15, 4 / 15]),
        (9, [2 / 15, 8 / 15, 1 / 15, 4 / 15]),
        (None, [2 / 15, 8 / 15, 1 / 15, 4 / 15]),
    ],
)
def test_the_largest_are_kept_and_renormalised(topk: int | None, expected: list[float]) -> None:
    close(inverse_distance_weights(torch.tensor([[4.0, 1.0, 8.0, 2.0]]), topk), [expected])


def test_ties_go_to_the_lower_column() -> None:
    close(inverse_distance_weights(torch.tensor([[2.0, 1.0, 2.0, 2.0]]), topk=2), [[1 / 3, 2 / 3, 0.0, 0.0]])
    close(inverse_distance_weights(torch.zeros(1, 4), topk=2), [[0.5, 0.5, 0.0, 0.0]])


@given(SEEDS, st.permutations(range(6)), st.sampled_from([None, 1, 3]))
@settings(deadline=None, max_examples=40)
def test_weights_follow_their_clients(seed: int, order: list[int], topk: int | None) -> None:
    distance = drawn(6, 6, seed)
    p = inverse_distance_weights(distance, topk)
    close(inverse_distance_weights(distance[order][:, order], topk), p[order][:, order])


@pytest.mark.parametrize("scale", [1e-290, 1e-30, 1e-6, 1e6, 1e30, 1e290])
def test_units_do_not_matter(scale: float) -> None:
    distance = drawn(4, 5)
    distance[1, 2] = 0.0
    close(inverse_distance_weights(distance * scale), inverse_distance_weights(distance))
    close(inverse_distance_weights(distance * scale, 2), inverse_distance_weights(distance, 2))


def test_distances_of_all_magnitudes_in_one_row() -> None:
    p = inverse_distance_weights(torch.tensor([[1e-300, 1e300, 1.0], [1e300, 3e300, 1e308]], dtype=torch.float64))
    close(p[0], [1.0, 0.0, 0.0])
    close(p[1], [0.75, 0.25, 0.0], atol=1e-7)


def test_denormal_distances_still_give_weights() -> None:
    """The guard, a share of their median, must not underflow."""
    p = inverse_distance_weights(torch.tensor([[0.0, 1e-320], [0.0, 1e-312], [1e-322, 1e-322]], dtype=torch.float64))
    close(p.sum(1), [1.0] * 3)
    assert bool((p[:, 0] >= p[:, 1]).all())
    assert bool((p >= 0).all())


def test_the_argument_stays() -> None:
    distance = drawn(2, 4)
    before = distance.clone()
    inverse_distance_weights(distance, 2)
    assert torch.equal(distance, before)
