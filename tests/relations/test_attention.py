"""FedAMP's and HeurFedAMP's mixing weights."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations import attention, cosine_attention, cosines, effective_alpha, squared_distances

SEEDS = st.integers(0, 2**31 - 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def identity(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def test_attention_of_two_clients_by_hand() -> None:
    """d = 3, sigma = 2, alpha = 0.5: xi_12 = 0.5 exp(-3/2) / 2."""
    distance = torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    other = 0.25 * math.exp(-1.5)
    expected = torch.tensor([[1 - other, other], [other, 1 - other]], dtype=torch.float64)
    torch.testing.assert_close(attention(distance, sigma=2.0, alpha=0.5), expected, atol=1e-15, rtol=0)


def test_attention_is_a_gradient_step_on_the_attention_inducing_function() -> None:
    """U = W - alpha grad sum_{i<j} A(|w_i - w_j|^2) / 2, where the inner 2 of the squared norm cancels."""
    theta = normal(4, 3).requires_grad_()
    sigma, alpha = 5.0, 0.7
    distance = (theta[:, None] - theta[None, :]).square().sum(dim=2)
    pairs = torch.triu(1 - torch.exp(-distance / sigma), diagonal=1).sum()
    (gradient,) = torch.autograd.grad(pairs / 2, theta)
    weights = theta.detach()
    mixed = attention(squared_distances(weights), sigma, alpha) @ weights
    torch.testing.assert_close(mixed, weights - alpha * gradient, atol=1e-12, rtol=0)


def test_alpha_is_capped_where_the_own_weight_would_turn_negative() -> None:
    """alpha = sigma = 1 and equal models: without the cap xi_ii = 2 - K."""
    xi = attention(torch.zeros(5, 5), sigma=1.0, alpha=1.0)
    expected = (torch.ones(5, 5, dtype=torch.float64) - identity(5)) / 4
    torch.testing.assert_close(xi, expected, atol=1e-15, rtol=0)
    assert effective_alpha(1.0, 1.0, 5) == 0.25
    assert effective_alpha(0.1, 1.0, 5) == 0.1
    assert effective_alpha(1.0, 1.0, 1) == 1.0


@pytest.mark.parametrize("relative", [False, True])
def test_identical_clients_receive_their_own_model(relative: bool) -> None:
    theta = normal(1, 6).repeat(4, 1)
    distance = squared_distances(theta)
    torch.testing.assert_close(attention(distance, 1.0, 1.0, relative) @ theta, theta, atol=1e-14, rtol=0)
    torch.testing.assert_close(cosine_attention(cosines(theta), 0.3, 5.0) @ theta, theta, atol=1e-14, rtol=0)


def test_a_very_wide_kernel_exchanges_nothing() -> None:
    distance = squared_distances(normal(4, 3))
    torch.testing.assert_close(attention(distance, 1e14, 1.0), identity(4), atol=1e-13, rtol=0)
    assert torch.equal(attention(distance, math.inf, 1.0), identity(4))


def test_alpha_zero_exchanges_nothing() -> None:
    assert torch.equal(attention(squared_distances(normal(4, 3)), 1.0, 0.0), identity(4))


def test_distances_far_beyond_the_kernel_exchange_nothing_unless_relative() -> None:
    distance = squared_distances(1e4 * normal(4, 50))
    assert torch.equal(attention(distance, 1.0, 1.0), identity(4))
    relative = attention(distance, 1.0, 1e12, relative=True)
    assert float(relative.diagonal().max()) < 1
    torch.testing.assert_close(relative, attention(distance / 1e8, 1.0, 1e12, relative=True), atol=1e-12, rtol=0)


def test_a_single_client_keeps_its_model() -> None:
    assert attention(torch.zeros(1, 1), 1.0, 1.0).tolist() == [[1.0]]
    assert cosine_attention(torch.ones(1, 1), 0.1, 1.0).tolist() == [[1.0]]


def test_a_broken_client_mixes_with_nobody() -> None:
    theta = normal(4, 3)
    theta[2, 0] = torch.nan
    keep = [0, 1, 3]
    for xi, alone in (
        (attention(squared_distances(theta), 4.0, 0.1), attention(squared_distances(theta[keep]), 4.0, 0.1)),
        (cosine_attention(cosines(theta), 0.2, 3.0), cosine_attention(cosines(theta[keep]), 0.2, 3.0)),
    ):
        assert xi[2].tolist() == [0.0, 0.0, 1.0, 0.0]
        assert bool((xi[keep, 2] == 0).all())
        torch.testing.assert_close(xi[keep][:, keep], alone, atol=1e-14, rtol=0)


@pytest.mark.parametrize(("sigma", "alpha"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, -0.1), (1.0, math.inf)])
def test_impossible_attention_options_are_refused(sigma: float, alpha: float) -> None:
    with pytest.raises(CoterieError):
        attention(torch.zeros(2, 2), sigma, alpha)


def test_cosine_attention_by_hand() -> None:
    cos = torch.tensor([[1.0, 0.5, -0.5], [0.5, 1.0, 0.0], [-0.5, 0.0, 1.0]])
    xi = cosine_attention(cos, self_weight=0.4, sigma=2.0)
    assert xi[0].tolist() == pytest.approx(
        [0.4, 0.6 * math.e / (math.e + 1 / math.e), 0.6 / math.e / (math.e + 1 / math.e)], abs=1e-15
    )


def test_full_self_weight_keeps_the_own_model() -> None:
    assert torch.equal(cosine_attention(cosines(normal(4, 3)), 1.0, 5.0), identity(4))


def test_equal_cosines_and_self_weight_one_over_k_give_the_mean() -> None:
    xi = cosine_attention(torch.full((5, 5), 0.3), 1 / 5, 7.0)
    torch.testing.assert_close(xi, torch.full((5, 5), 0.2, dtype=torch.float64), atol=1e-15, rtol=0)


def test_a_sharp_softmax_does_not_overflow() -> None:
    xi = cosine_attention(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.5], [0.1, 0.5, 1.0]]), 0.25, 1e6)
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.75, 0.25, 0.0], [0.0, 0.75, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(xi, expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("self_weight", [-0.1, 1.1, math.nan])
def test_an_impossible_self_weight_is_refused(self_weight: float) -> None:
    with pytest.raises(CoterieError):
        cosine_attention(torch.ones(2, 2), self_weight, 1.0)


@given(SEEDS, st.floats(1e-3, 1e3), st.floats(0, 1e3), st.booleans(), st.permutations(range(5)))
@settings(deadline=None, max_examples=60)
def test_attention_mixes_convexly_and_follows_its_clients(
    seed: int, sigma: float, alpha: float, relative: bool, order: list[int]
) -> None:
    distance = squared_distances(normal(5, 4, seed=seed))
    xi = attention(distance, sigma, alpha, relative)
    assert float(xi.min()) >= 0
    torch.testing.assert_close(xi.sum(dim=1), torch.ones(5, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(xi, xi.T, atol=1e-12, rtol=0)
    permuted = attention(distance[order][:, order], sigma, alpha, relative)
    torch.testing.assert_close(permuted, xi[order][:, order], atol=1e-12, rtol=0)


@given(SEEDS, st.floats(0, 1), st.floats(-50, 50), st.permutations(range(5)))
@settings(deadline=None, max_examples=60)
def test_cosine_attention_mixes_convexly_and_follows_its_clients(
    seed: int, self_weight: float, sigma: float, order: list[int]
) -> None:
    cos = cosines(normal(5, 4, seed=seed))
    xi = cosine_attention(cos, self_weight, sigma)
    assert float(xi.min()) >= 0
    torch.testing.assert_close(xi.sum(dim=1), torch.ones(5, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(xi.diagonal(), torch.full((5,), self_weight, dtype=torch.float64), atol=1e-12, rtol=0)
    permuted = cosine_attention(cos[order][:, order], self_weight, sigma)
    torch.testing.assert_close(permuted, xi[order][:, order], atol=1e-12, rtol=0)
