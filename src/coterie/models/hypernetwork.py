"""A hypernetwork: a small network that turns embeddings into the weights of models, as pure functions of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

Weights = dict[str, Tensor]
EMBEDDINGS = "v"


def hypernetwork(shapes: Mapping[str, torch.Size], embeddings: Tensor, hidden: int, layers: int, seed: int) -> Weights:
    """The weights of a hypernetwork, drawn as ``torch.nn.Linear`` draws its own, and the embeddings.

    ``layers`` hidden layers of ``hidden`` units with ReLU; then one linear output for each tensor of ``shapes``.

    Args:
        shapes: the tensors of a target model by name.
        embeddings: ``(K, e)``, of the type and on the device that all weights shall have.
        hidden: units of a hidden layer.
        layers: hidden layers; with 0 the outputs are linear in the embedding.
        seed: decides the draw.

    Returns:
        ``v: (K, e)``, ``hidden.<i>.weight``, ``hidden.<i>.bias``, then for each tensor ``to.<name>.weight: (numbers,
        width)`` and ``to.<name>.bias: (numbers,)``.
    """
    draw = torch.Generator().manual_seed(seed % 2**63)
    weights: Weights = {EMBEDDINGS: embeddings}
    width = embeddings.shape[1]
    outputs = [(f"hidden.{layer}", hidden) for layer in range(layers)]
    for name, count in [*outputs, *((f"to.{name}", prod(shape)) for name, shape in shapes.items())]:
        for kind, size in (("weight", (count, width)), ("bias", (count,))):
            entries = torch.empty(size, dtype=torch.float64).uniform_(-1.0, 1.0, generator=draw) / width**0.5
            weights[f"{name}.{kind}"] = entries.to(embeddings)
        width = hidden if name.startswith("hidden.") else width
    return weights


def generated(weights: Mapping[str, Tensor], clients: Tensor, shapes: Mapping[str, torch.Size]) -> Weights:
    """theta = h(v; phi) for ``clients: (k,)``, rows of the embeddings: ``{name: (k, *shape)}``."""
    z, layer = weights[EMBEDDINGS][clients.to(weights[EMBEDDINGS].device)], 0
    while f"hidden.{layer}.weight" in weights:
        z, layer = torch.relu(_linear(weights, f"hidden.{layer}", z)), layer + 1
    return {name: _linear(weights, f"to.{name}", z).view(len(clients), *shape) for name, shape in shapes.items()}


def pulled_back(
    weights: Mapping[str, Tensor], clients: Tensor, change: Mapping[str, Tensor], only: Sequence[str] | None = None
) -> Weights:
    """The gradient of ``sum_k <h(v_k; phi), change_k>`` over ``clients: (k,)``, with ``change: {name: (k, *shape)}``.

    This is the vector-Jacobian product ``(d theta / d (phi, v))^T change``, for all weights or ``only`` those named;
    embeddings of other clients have the gradient 0.
    """
    leaves = {name: weights[name].detach().requires_grad_() for name in only or weights}
    with torch.enable_grad():
        shapes = {name: tensor.shape[1:] for name, tensor in change.items()}
        theta = generated({**weights, **leaves}, clients, shapes)
        gradients = torch.autograd.grad(
            [theta[name] for name in change], list(leaves.values()), list(change.values()), materialize_grads=True
        )
    return dict(zip(leaves, gradients, strict=True))


def _linear(weights: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    outputs = inputs @ weights[f"{name}.weight"].T
    return outputs + weights[f"{name}.bias"] if f"{name}.bias" in weights else outputs
