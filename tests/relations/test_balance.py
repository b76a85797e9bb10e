"""The balanced softmax."""

import pytest
import torch
from torch.nn import functional

from coterie.relations import balanced_cross_entropy, balancing_offsets

OUTPUTS = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
COUNTS = torch.tensor([[3, 2, 0], [1, 5, 9]])
TARGETS = torch.tensor([[0, 1, 0, 1, 0], [2, 2, 1, 0, 2]])


def test_it_weighs_each_class_by_a_power_of_its_count() -> None:
    losses = balanced_cross_entropy(balancing_offsets(COUNTS, 0.7))(OUTPUTS, TARGETS)
    for client in range(2):
        for example in range(5):
            mass = COUNTS[client].double() ** 0.7 * OUTPUTS[client, example].exp()
            target = TARGETS[client, example]
            assert float(losses[client, example]) == pytest.approx(-float((mass[target] / mass.sum()).log()), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_T18_uniform_counts_are_cross_entropy(gamma: float) -> None:
    counts = torch.full((2, 3), 7)
    losses = balanced_cross_entropy(balancing_offsets(counts, gamma))(OUTPUTS, TARGETS)
    plain = functional.cross_entropy(OUTPUTS.flatten(0, 1), TARGETS.flatten(), reduction="none").view(2, 5)
    torch.testing.assert_close(losses, plain, rtol=0, atol=1e-12)


def test_T18_gamma_0_is_cross_entropy_whatever_is_absent() -> None:
    assert torch.equal(balancing_offsets(COUNTS, 0.0), torch.zeros(2, 3, dtype=torch.float64))


def test_T18_an_absent_class_has_no_mass_and_the_loss_and_its_gradient_are_finite() -> None:
    outputs = OUTPUTS.clone().requires_grad_()
    losses = balanced_cross_entropy(balancing_offsets(COUNTS, 1.0))(outputs, TARGETS)
    (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    assert bool(losses.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert torch.equal(gradient[0, :, 2], torch.zeros(5, dtype=torch.float64))
    assert bool((gradient[1] != 0).all())
