"""Steps along a graph of clients, and by a covariance of their tasks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations import covariance_step, gram, laplacian_step, largest_degree, task_covariance

EVERYONE = torch.ones(4, dtype=torch.bool)


def graph() -> Tensor:
    draw = torch.rand(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return draw + draw.T


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_step_by_hand() -> None:
    a = torch.tensor([[9.0, 0.5, 0.0], [0.5, 9.0, 1.0], [0.0, 1.0, 9.0]])
    known = torch.ones(3, dtype=torch.bool)
    expected = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.7, 0.2], [0.0, 0.2, 0.8]], dtype=torch.float64)
    close(laplacian_step(a, 0.2, known), expected)
    assert largest_degree(a, known) == 1.5


def test_a_step_keeps_the_mean_and_is_symmetric() -> None:
    step = laplacian_step(graph(), 0.1, EVERYONE)
    close(step, step.T)
    close(step.sum(dim=0), torch.ones(4, dtype=torch.float64))


def test_the_complete_graph_reaches_the_mean() -> None:
    close(laplacian_step(torch.full((4, 4), 0.5), 0.5, EVERYONE), torch.full((4, 4), 0.25, dtype=torch.float64))


def test_who_is_not_known_is_in_no_sum() -> None:
    known = torch.tensor([True, False, True, True])
    step = laplacian_step(graph(), 0.1, known)
    close(step[1], torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    inner = torch.tensor([0, 2, 3])
    close(step[inner][:, inner], laplacian_step(graph()[inner][:, inner], 0.1, torch.ones(3, dtype=torch.bool)))


def test_a_step_that_overshoots_is_refused() -> None:
    a = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    known = torch.ones(2, dtype=torch.bool)
    laplacian_step(a, 0.499, known)
    with pytest.raises(CoterieError, match="overshoots"):
        laplacian_step(a, 0.5, known)


def test_gram_over_blocks() -> None:
    w = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    close(gram([w[:, :4].reshape(4, 2, 2), w[:, 4:]]), w.double() @ w.double().T)


def test_task_covariance_is_symmetric_positive_of_trace_one() -> None:
    w = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = torch.cat([w, w[:1]])  # two equal tasks: singular
    sigma = task_covariance(w @ w.T)
    assert torch.equal(sigma, sigma.T)
    assert torch.linalg.eigvalsh(sigma).min() > 0
    assert abs(float(sigma.diagonal().sum()) - 1.0) < 1e-12
    rank_three = torch.linalg.eigvalsh(sigma)[:3]  # what is missing in rank is the floor, not zero
    assert (rank_three < 1e-3).all()


def test_task_covariance_by_hand() -> None:
    # W'W = diag(9, 1): the root is diag(3, 1)
    close(task_covariance(torch.diag(torch.tensor([9.0, 1.0]))), torch.diag(torch.tensor([0.75, 0.25])).double())
    # of any size: nothing depends on the unit of the models
    close(task_covariance(torch.diag(torch.tensor([9e-20, 1e-20]))), torch.diag(torch.tensor([0.75, 0.25])).double())
    close(task_covariance(torch.zeros(4, 4)), torch.eye(4).double() / 4)


def test_rounding_below_zero_is_cut() -> None:
    products = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64) - 1e-9 * torch.eye(2, dtype=torch.float64)
    sigma = task_covariance(products)
    assert torch.isfinite(sigma).all()
    assert torch.linalg.eigvalsh(sigma).min() > 0


def test_a_covariance_step_is_the_inverse_of_identity_plus_scaled_omega() -> None:
    sigma = task_covariance(graph() @ graph())
    identity = torch.eye(4, dtype=torch.float64)
    close(covariance_step(sigma, 0.3) @ (identity + 0.3 * torch.linalg.inv(sigma)), identity)
    close(covariance_step(sigma, 0.0), identity)


def test_a_covariance_step_never_overshoots() -> None:
    sigma = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    values = torch.linalg.eigvalsh(covariance_step(sigma, 1e6))
    assert values.min() >= 0
    assert values.max() <= 1
