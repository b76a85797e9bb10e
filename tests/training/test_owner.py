"""Adam for rows that step at different times."""

from __future__ import annotations

import pytest
import torch
from plain import EXACT, assert_same, stack_of
from torch import Tensor

from coterie.models import Models
from coterie.training import adam_rows

SKIPS = [
    [True, True, True, True], [False, True, True, False], [False, False, False, False], [True, True, False, False],
    [True, False, True, False], [True, True, True, True],
]  # fmt: skip


def drawn(like: Models, seed: int, scale: float = 1.0) -> Models:
    draw = torch.Generator().manual_seed(seed)
    tensors = {n: scale * torch.randn(t.shape, generator=draw, dtype=torch.float64) for n, t in like.parameters()}
    return Models(like.layout, {**{name: like.tensors[name] for name in like.layout.buffers}, **tensors})


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e6])
@pytest.mark.parametrize("name", ["mlp", "scaled"])
def test_each_row_is_an_adam_of_its_own(name: str, scale: float) -> None:
    """As ``torch.optim.Adam``, which is called for a row only where that row is active; a parameter may be a number."""
    theta = stack_of(name).initial(0, 4, distinct=True)
    alone = [[tensor[row].clone().requires_grad_() for _, tensor in theta.parameters()] for row in range(4)]
    optimisers = [torch.optim.Adam(own, lr=0.03) for own in alone]
    mean, square, steps = theta.zeros(), theta.zeros(), torch.zeros(4, dtype=torch.int64)
    for number, active in enumerate(map(torch.tensor, SKIPS)):
        gradient, before = drawn(theta, number, scale), theta.clone()
        steps = steps + active
        theta, mean, square = adam_rows(theta, gradient, mean, square, steps, active, 0.03)
        for row in range(4):
            if active[row]:
                for own, (_, g) in zip(alone[row], gradient.parameters(), strict=True):
                    own.grad = g[row].clone()
                optimisers[row].step()
            else:
                assert_same(theta[row], before[row], rtol=0, atol=0)
            for own, (_, tensor) in zip(alone[row], theta.parameters(), strict=True):
                torch.testing.assert_close(tensor[row], own.detach(), **EXACT)
    for row in range(4):
        for own, (part, _) in zip(alone[row], theta.parameters(), strict=True):
            state = optimisers[row].state[own]
            torch.testing.assert_close(mean.tensors[part][row], state["exp_avg"], rtol=1e-12, atol=0)
            torch.testing.assert_close(square.tensors[part][row], state["exp_avg_sq"], rtol=1e-12, atol=0)
            assert steps[row] == state["step"]


def test_the_arguments_stay() -> None:
    theta = drawn(stack_of("mlp").initial(0, 3, distinct=True), 5)
    gradient, mean, square = drawn(theta, 1), drawn(theta, 2), drawn(theta, 3) * drawn(theta, 3)
    given = (theta, gradient, mean, square)
    copies = [models.clone() for models in given]
    adam_rows(*given, torch.tensor([1, 2, 3]), torch.tensor([True, False, True]), 0.1)
    for models, copy in zip(given, copies, strict=True):
        assert_same(models, copy, rtol=0, atol=0)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_row_that_does_not_step_may_have_any_gradient(broken: float) -> None:
    theta = stack_of("mlp").initial(0, 2, distinct=True)
    gradient = drawn(theta, 1)
    for _, tensor in gradient.parameters():
        tensor[1] = broken
    zeros, steps = theta.zeros(), torch.tensor([1, 0])
    moved, mean, square = adam_rows(theta, gradient, zeros, zeros, steps, torch.tensor([True, False]), 0.1)
    assert_same(moved[1], theta[1], rtol=0, atol=0)
    assert all(bool(models.finite().all()) for models in (moved, mean, square))
    step: Tensor = theta.flat()[0] - moved.flat()[0]
    torch.testing.assert_close(step, 0.1 * gradient.flat()[0].sign(), rtol=1e-6, atol=1e-6)  # the first step of Adam


def test_batch_statistics_stay() -> None:
    theta = stack_of("normed-cnn").initial(0, 2, distinct=True)
    zeros, every = theta.zeros(), torch.tensor([True, True])
    moved, _, _ = adam_rows(theta, drawn(theta, 1), zeros, zeros, torch.tensor([1, 1]), every, 0.1)
    assert theta.layout.buffers
    for name in theta.layout.buffers:
        assert torch.equal(moved.tensors[name], theta.tensors[name])
