"""Local training client after client: a network that fills a core by itself wants its weights in the cache."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.models.dropout import step_keys
from coterie.training.batches import BatchPlan
from coterie.training.losses import Objective
from coterie.training.optimiser import Optimiser


def fit_in_turn(
    stack: Stack,
    working: Models,
    data: ClientData,
    plan: BatchPlan,
    optimiser: Optimiser,
    names: tuple[str, ...],
    objective: Objective,
    keys: Tensor,
    example_weights: Tensor | None,
) -> None:
    """Train the rows of ``working: (k,)`` in place, all steps of one before the next; rows stand as in ``plan``."""
    replica = stack.replica
    trained = replica.prepare(True, names)
    for row in range(len(working)):
        replica.show(working.tensors, row)
        own = optimiser.alone(row)
        theta = {name: working.tensors[name][row : row + 1] for name in names}
        for batch in plan.alone(row):
            inputs, targets = data.batch(batch.positions)
            weights = data.weighed(batch.positions, batch.weights)
            if example_weights is not None:
                weights = weights * example_weights[batch.positions - data.offsets[0]].to(weights)
            if stack.draws:
                replica.key(stack.key_names, step_keys(keys[row], batch.step))
            with stack.lowering():
                outputs = replica(inputs[0].to(stack.dtype)).unsqueeze(0)
            if not names:  # batch statistics move, even where the part to train is empty
                continue
            loss = (objective(outputs.to(stack.dtype), targets) * weights).sum()
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            own.update(theta, _found(theta, gradients, pulled=own.pull is not None))


def gradient_in_turn(
    stack: Stack,
    tensors: Mapping[str, Tensor],
    names: tuple[str, ...],
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    objective: Objective,
    *,
    train: bool,
    sizes: Tensor | None,
    keys: Tensor | None,
) -> dict[str, Tensor]:
    """`batch_gradient`, one row after the other, so that one row's activations are held at a time."""
    replica = stack.replica
    trained = replica.prepare(train, names)
    rows, width = inputs.shape[:2]
    lengths = [width] * rows if sizes is None or not train else sizes.tolist()
    gradients = {name: torch.zeros_like(tensors[name]) for name in names}
    used: set[str] = set()
    for row, length in enumerate(lengths):
        replica.show(tensors, row)
        if keys is not None:
            replica.key(stack.key_names, keys[row])
        with stack.lowering():
            outputs = replica(inputs[row, :length].to(stack.dtype)).unsqueeze(0)
        if not names:  # batch statistics have moved
            continue
        real = slice(row, row + 1), slice(0, length)
        loss = (objective(outputs.to(stack.dtype), targets[real]) * weights[real]).sum()
        for name, gradient in zip(names, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
            if gradient is not None:
                gradients[name][row].copy_(gradient)
                used.add(name)
    return {name: gradient for name, gradient in gradients.items() if name in used}


def _found(theta: Mapping[str, Tensor], gradients: tuple[Tensor | None, ...], *, pulled: bool) -> dict[str, Tensor]:
    """Gradients ``(1, *shape)`` by name, without those of parameters that were not used, unless a pull uses all."""
    return {
        name: torch.zeros_like(own) if gradient is None else gradient.unsqueeze(0)
        for (name, own), gradient in zip(theta.items(), gradients, strict=True)
        if pulled or gradient is not None
    }
