"""Hypernetworks as functions of tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.models.hypernetwork import Weights, generated, hypernetwork, pulled_back

SHAPES = {"0.weight": torch.Size([3, 2]), "0.bias": torch.Size([3]), "scale": torch.Size([])}
DRAW = torch.Generator().manual_seed(3)
V = torch.randn(5, 4, dtype=torch.float64, generator=DRAW)
CLIENTS = torch.tensor([4, 0, 2])
CHANGE = {name: torch.randn(3, *shape, dtype=torch.float64, generator=DRAW) for name, shape in SHAPES.items()}


def network(layers: int = 3) -> Weights:
    return hypernetwork(SHAPES, V, 6, layers, 11)


def inner(weights: Weights) -> Tensor:
    theta = generated(weights, CLIENTS, SHAPES)
    return sum(((theta[name] * CHANGE[name]).sum() for name in SHAPES), torch.zeros(()))


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_it_is_the_network_that_torch_would_build(layers: int) -> None:
    weights = network(layers)
    theta = generated(weights, CLIENTS, SHAPES)
    modules: list[nn.Module] = []
    width = 4
    for layer in range(layers):
        modules += [nn.Linear(width, 6, dtype=torch.float64), nn.ReLU()]
        modules[-2].load_state_dict({k: weights[f"hidden.{layer}.{k}"] for k in ("weight", "bias")})
        width = 6
    body = nn.Sequential(*modules)
    for name, shape in SHAPES.items():
        head = nn.Linear(width, shape.numel(), dtype=torch.float64)
        head.load_state_dict({k: weights[f"to.{name}.{k}"] for k in ("weight", "bias")})
        torch.testing.assert_close(theta[name], head(body(V[CLIENTS])).view(3, *shape).detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_T20_the_vector_jacobian_product_is_autograds_of_the_inner_product(layers: int) -> None:
    weights = network(layers)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    inner(leaves).backward()
    found = pulled_back(weights, CLIENTS, CHANGE)
    assert found.keys() == weights.keys()
    for name, gradient in found.items():
        expected = leaves[name].grad
        assert expected is not None
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
        assert bool(gradient.abs().max() > 1e-3)
    assert torch.equal(found["v"][[1, 3]], torch.zeros(2, 4, dtype=torch.float64))
    (alone,) = pulled_back(weights, CLIENTS, CHANGE, ["v"]).values()
    torch.testing.assert_close(alone, found["v"], rtol=0, atol=1e-14)


def test_T20_the_vector_jacobian_product_by_finite_differences() -> None:
    weights, h = network(), 1e-6
    found = pulled_back(weights, CLIENTS, CHANGE)
    for name, tensor in weights.items():
        direction = torch.randn(tensor.shape, dtype=torch.float64, generator=DRAW)
        up, down = (inner({**weights, name: tensor + sign * h * direction}) for sign in (1, -1))
        slope = float(up - down) / (2 * h)
        assert slope == pytest.approx(float((found[name] * direction).sum()), abs=1e-7)


def test_entries_are_drawn_as_those_of_a_linear_layer() -> None:
    weights = hypernetwork({"w": torch.Size([50, 50])}, torch.zeros(2, 4), 100, 2, 0)
    for name, width in (("hidden.0", 4), ("hidden.1", 100), ("to.w", 100)):
        for kind in ("weight", "bias"):
            entries = weights[f"{name}.{kind}"]
            assert entries.dtype == torch.float32
            assert 0.8 / width**0.5 < float(entries.abs().max()) <= 1 / width**0.5
            assert abs(float(entries.mean())) < 0.15 / width**0.5
    assert torch.equal(
        weights["to.w.weight"], hypernetwork({"w": torch.Size([50, 50])}, torch.zeros(2, 4), 100, 2, 0)["to.w.weight"]
    )
    assert not torch.equal(
        weights["to.w.weight"], hypernetwork({"w": torch.Size([50, 50])}, torch.zeros(2, 4), 100, 2, 1)["to.w.weight"]
    )
