"""Weights by what models gain, and by a gradient through a softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.relations import adam, benefits, positive_shares, softmax_slope


def numbers(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_benefits_are_gains_per_distance() -> None:
    a = benefits(torch.tensor([3.0]), numbers(1.0, 4.0), numbers(4.0, 0.5), torch.tensor([1.0]))
    close(a, numbers(0.5, -2.0))


def test_an_equal_model_has_no_benefit() -> None:
    """Neither one at distance 0 nor one within rounding, whose quotient would be noise over noise."""
    a = benefits(torch.tensor([3.0]), numbers(1.0, 3.0 - 1e-7, 2.0), numbers(0.0, 1e-9, 1.0), torch.tensor([1.0]))
    close(a, numbers(0.0, 0.0, 1.0))
    assert benefits(torch.zeros(1), numbers(-1.0), numbers(0.0), torch.zeros(1)) == 0


def test_what_is_not_finite_has_no_benefit() -> None:
    a = benefits(torch.tensor([3.0]), numbers(torch.nan, torch.inf), numbers(1.0, 1.0), torch.tensor([1.0]))
    close(a, numbers(0.0, 0.0))


def test_positive_shares() -> None:
    close(positive_shares(numbers(3.0, -2.0, 1.0)), numbers(0.75, 0.0, 0.25))
    close(positive_shares(numbers(-3.0, 0.0)), numbers(0.0, 0.0))
    close(positive_shares(numbers(1e-300, 0.0)), numbers(1.0, 0.0))


def test_softmax_slope_is_that_of_autograd() -> None:
    draw = torch.Generator().manual_seed(0)
    alpha = torch.randn(3, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    (alpha.softmax(dim=1) * slope).sum().backward()
    assert alpha.grad is not None
    close(softmax_slope(alpha.detach().softmax(dim=1), slope), alpha.grad)


def test_adam_is_that_of_torch() -> None:
    draw = torch.Generator().manual_seed(0)
    alpha = torch.randn(2, 3, generator=draw, dtype=torch.float64)
    parameter = alpha.clone().requires_grad_()
    optimiser, moments = torch.optim.Adam([parameter], lr=0.05), torch.zeros(2, 3, 3, dtype=torch.float64)
    for _ in range(5):
        slope = torch.randn(2, 3, generator=draw, dtype=torch.float64)
        parameter.grad = slope
        optimiser.step()
        alpha, moments = adam(alpha, slope, moments, 0.05)
    close(alpha, parameter.detach())


def test_adam_leaves_what_has_no_slope() -> None:
    alpha, moments = adam(numbers(-1e3, 1.0), numbers(0.0, 1.0), torch.zeros(1, 2, 3, dtype=torch.float64), 0.05)
    assert alpha[0, 0] == -1e3
    assert moments[0, :, 2].tolist() == [1.0, 1.0]
