"""FEDORA's propagation by leading eigenvectors: exact where all are kept, within a bound that is reached elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations import (
    LowRank,
    low_rank,
    low_rank_factors,
    low_rank_propagation,
    propagation_matrix,
    row_stochastic,
    similarity_graph,
    subspace_similarity,
)

ALPHAS = [0.0, 0.3, 1.0, 4.0, 50.0]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bases(clients: int, dimension: int = 6, p: int = 1, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(clients, dimension, p, seed=seed)).Q


def everyone(clients: int) -> Tensor:
    return torch.ones(clients, dtype=torch.bool)


def dense(U: Tensor, alpha: float, seen: Tensor | None = None, **graph: Any) -> Tensor:
    return propagation_matrix(row_stochastic(similarity_graph(subspace_similarity(U), seen=seen, **graph)), alpha)


def error_and_bound(W: Tensor, alpha: float, rank: int) -> tuple[float, float]:
    """The norm of the error as an operator of |.|_D, and what is promised."""
    left, right, bound = low_rank_factors(W, alpha, rank)
    truncated = torch.eye(len(W), dtype=torch.float64) / (1 + alpha) + left @ right.T
    torch.testing.assert_close(truncated.sum(1), torch.ones(len(W), dtype=torch.float64), rtol=0, atol=1e-12)
    degrees = W.double().sum(1)
    error = truncated - propagation_matrix(row_stochastic(W.double()), alpha)
    weighted = degrees.sqrt()[:, None] * error * degrees.rsqrt()
    return float(torch.linalg.matrix_norm(weighted, ord=2)), bound


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("kind", "loop", "p"), [("cos", True, 1), ("exp_cos", False, 1), ("cos", False, 2)])
def test_with_all_eigenvectors_it_is_the_closed_form(alpha: float, kind: Any, loop: bool, p: int) -> None:
    U, theta = bases(12, p=p), normal(12, 7, seed=1)
    found = low_rank_propagation(U, alpha, seen=everyone(12), kind=kind, self_loop=loop, rank=12)
    expected = dense(U, alpha, kind=kind, self_loop=loop) @ theta
    torch.testing.assert_close(found.product(theta), expected, rtol=0, atol=1e-10)
    assert found.bound < 1e-10


@given(st.integers(0, 2**31 - 1), st.integers(2, 14), st.integers(1, 6), st.sampled_from(ALPHAS), st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_bound_holds_on_any_symmetric_graph_and_is_reached(
    seed: int, clients: int, rank: int, alpha: float, thin: bool
) -> None:
    """Thin graphs have negative eigenvalues as large as the positive ones, and fall apart."""
    draw = torch.rand(clients, clients, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    W = draw + draw.T
    if thin:
        W = torch.where(W > 1.2, W, 0.0).fill_diagonal_(0.0)
        W = torch.where(W.sum(1) == 0, torch.eye(clients, dtype=torch.float64), W)
    error, bound = error_and_bound(W, alpha, rank)
    assert error <= bound + 1e-13
    assert error >= bound - 1e-9


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_bound_holds_where_only_leading_eigenvectors_are_computed(
    rank: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_rank, "FEW", 10)
    W = low_rank.dense_weights(bases(150, 8), dtype=dtype)
    for alpha in (0.5, 4.0):
        error, bound = error_and_bound(W, alpha, rank)
        assert 0.99 * bound <= error <= bound
        assert error > 1e-3


def test_a_two_coloured_graph_has_the_eigenvalue_minus_one() -> None:
    """Two clients who only hear each other: l = 1 and -1, g(-1) = -kappa / (1 + kappa)."""
    W, kappa = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64), 0.8
    error, bound = error_and_bound(W, 4.0, 1)
    assert error == pytest.approx((1 - kappa) * kappa / (1 + kappa), abs=1e-12)
    assert bound == pytest.approx(error, abs=1e-12)


def test_the_worst_models_are_the_first_eigenvector_left_out() -> None:
    W = similarity_graph(subspace_similarity(bases(20)))
    degrees = W.sum(1)
    values, vectors = torch.linalg.eigh(degrees.rsqrt()[:, None] * W * degrees.rsqrt())
    left, right, bound = low_rank_factors(W, 1.0, 3)
    theta = (degrees.rsqrt() * vectors[:, -4])[:, None]
    error = 0.5 * theta + left @ (right.T @ theta) - propagation_matrix(row_stochastic(W), 1.0) @ theta
    measured = float((degrees[:, None].sqrt() * error).norm() / (degrees[:, None].sqrt() * theta).norm())
    assert measured == pytest.approx(bound, rel=1e-9)
    assert bound == pytest.approx(0.5 * 0.5 * float(values[-4]) / (1 - 0.5 * float(values[-4])), rel=1e-9)


def test_models_that_all_agree_stay_exactly() -> None:
    found = low_rank_propagation(bases(9), 4.0, seen=everyone(9), rank=1)
    theta = normal(1, 5).expand(9, 5).contiguous()
    torch.testing.assert_close(found.product(theta), theta, rtol=0, atol=1e-12)


def test_clients_without_a_model_only_take() -> None:
    U, theta = bases(10), normal(10, 4, seed=2)
    U[3] = U[8] = torch.nan  # not known: one has a model, the other has none
    seen = everyone(10)
    seen[[1, 6, 8]] = False
    found = low_rank_propagation(U, 4.0, seen=seen, rank=10)
    expected = dense(U, 4.0, seen=seen) @ theta
    torch.testing.assert_close(found.product(theta), expected, rtol=0, atol=1e-10)
    changed = theta.clone()
    changed[[1, 6, 8]] += 100.0
    others = seen.nonzero().flatten()
    assert torch.equal(found.product(changed)[others], found.product(theta)[others])


def test_lonely_clients_keep_their_models() -> None:
    """Client 0 is orthogonal to all others; without a self loop it has no edge at all."""
    U = torch.cat([torch.zeros(5, 1, 1, dtype=torch.float64), bases(5, 4)], dim=1)
    U[0] = torch.tensor([1.0, 0, 0, 0, 0]).unsqueeze(1)
    theta = normal(5, 3)
    for loop in (True, False):
        found = low_rank_propagation(U, 1.0, seen=everyone(5), self_loop=loop, rank=4)
        assert torch.equal(found.product(theta)[0], theta[0])
        torch.testing.assert_close(found.product(theta), dense(U, 1.0, self_loop=loop) @ theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("known", [True, False])
def test_one_client_and_clients_of_whom_nothing_is_known(known: bool) -> None:
    U = bases(1) if known else torch.full((3, 6, 1), torch.nan)
    theta = normal(len(U), 2)
    assert torch.equal(low_rank_propagation(U, 1.0, seen=everyone(len(U))).product(theta), theta)


def test_rows_of_it_and_a_place_for_the_result() -> None:
    found, theta = low_rank_propagation(bases(8), 1.0, seen=everyone(8), rank=3), normal(8, 5)
    whole, rows = found.product(theta), torch.tensor([5, 1])
    assert torch.equal(found[rows].product(theta), whole[rows])
    assert found[rows].shape == (2, 8)
    out = torch.zeros_like(theta)
    assert found.product(theta, out) is out
    assert torch.equal(out, whole)


def test_counts_take_the_largest_of_those_who_are_linked() -> None:
    U, seen = bases(5), everyone(5)
    U[0] = torch.nan
    seen[4] = False
    found = low_rank_propagation(U, 1.0, seen=seen)
    assert found.greatest(torch.tensor([[9], [1], [2], [3], [0]])).tolist() == [[9], [3], [3], [3], [3]]


def test_weights_by_blocks_are_those_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank, "ENTRIES", 30)
    U = bases(11)
    for loop in (True, False):
        W = low_rank.dense_weights(U, kind="exp_cos", self_loop=loop)
        assert torch.equal(W, W.T)
        expected = similarity_graph(subspace_similarity(U), kind="exp_cos", self_loop=loop)
        torch.testing.assert_close(W, expected, rtol=1e-13, atol=0)


def test_what_is_saved_is_all(tmp_path: Any) -> None:
    found, theta = low_rank_propagation(bases(8), 1.0, seen=everyone(8) & (torch.arange(8) != 2), rank=3), normal(8, 5)
    torch.save(found.state_dict(), tmp_path / "state.pt")
    again = LowRank()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(again.product(theta), found.product(theta))
    assert again.bound == found.bound


def test_what_it_cannot_do_is_refused() -> None:
    W = similarity_graph(subspace_similarity(bases(6)), topk=2, self_loop=False)
    with pytest.raises(CoterieError, match="symmetric"):
        low_rank_factors(W, 1.0)
    for alpha in (-1.0, math.nan, math.inf):
        with pytest.raises(CoterieError, match="finite alpha"):
            low_rank_propagation(bases(3), alpha, seen=everyone(3))
    with pytest.raises(CoterieError, match="rank"):
        low_rank_propagation(bases(3), 1.0, seen=everyone(3), rank=0)
