"""Losses, hits and full gradients of many models on their clients' data, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.federation.data import ClientData, Normal
from coterie.models import Models, Stack
from coterie.training.batches import SequentialPlan
from coterie.training.fit import batch_gradient
from coterie.training.losses import Objective

# float entries of one batch, of inputs and, on a CPU, of the widest layer's outputs: large enough for matrix products,
# small enough for the caches, and to stay below the size from which an allocator asks the system for fresh pages
BATCH_BUDGET = 4_000_000
# examples of one batch of a common model: layers may make far more numbers of an example than it has itself
LONGEST = 4096
Statistic = Callable[[Tensor, Tensor], Tensor]
Observe = Callable[[Tensor, Tensor], None]
"""Is shown the outputs ``(m, ...)`` of the examples at places ``(m,)``, counted from the first of the data."""


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the largest output is the right class: ``(k, B, C), (k, B) -> (k, B)``."""
    return (outputs.argmax(-1) == targets).to(torch.float64)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error over the targets of an example: ``(k, B, t) -> (k, B)``."""
    return (outputs - targets.reshape(outputs.shape)).abs().mean(-1)


def in_units(error: Statistic, normal: Normal | None) -> Statistic:
    """A statistic of differences between outputs and targets, in the unit that the targets came in."""
    if normal is None:
        return error

    def of_raw(outputs: Tensor, targets: Tensor) -> Tensor:
        differences = (outputs - targets.reshape(outputs.shape)).double() * normal.std.to(outputs.device)
        return error(differences, torch.zeros_like(differences))

    return of_raw


@torch.no_grad()
def means(
    stack: Stack,
    models: Models,
    data: ClientData,
    statistics: Mapping[str, Statistic],
    observe: Observe | None = None,
) -> dict[str, Tensor]:
    """The mean of each statistic over each client's examples, ``(k,)`` float64; NaN for a client without.

    Where examples have weights it is the weighted mean.

    ``models: (k,)``, one row for each client of ``data``, in evaluation mode. Clients that share one stored
    row are evaluated as one long batch. ``observe`` is shown the outputs of all examples, each once.
    """
    if models.common:
        return _means_of_common(stack, models, data, statistics, observe)
    counts, starts = _counts(data)
    size = _batch_size(stack, data, len(models))
    plan = SequentialPlan(counts, starts, size, dtype=torch.float64, device=models.device)
    order = torch.from_numpy(plan.order).to(models.device)
    identity = bool((order == torch.arange(len(order), device=order.device)).all())
    ordered = models if identity else models[order]
    sums = {name: torch.zeros(len(models), dtype=torch.float64, device=models.device) for name in statistics}
    for batch in plan:
        inputs, targets = data.batch(batch.positions)
        rows = {name: tensor[: batch.active] for name, tensor in ordered.tensors.items()}
        outputs = stack.forward(rows, inputs)
        real = batch.weights > 0
        for name, statistic in statistics.items():
            values = data.weighed(batch.positions, statistic(outputs, targets).double()).where(real, 0.0)
            sums[name][: batch.active] += values.sum(1)
        if observe is not None:
            observe(batch.positions[real] - data.offsets[0], outputs[real])
    back = order.argsort()
    sizes = data.sizes.to(models.device)
    return {name: total[back] / sizes for name, total in sums.items()}


@torch.no_grad()
def per_example(stack: Stack, models: Models, data: ClientData, statistic: Statistic) -> Tensor:
    """A statistic of every example in evaluation mode, ``(n,)`` float64, flat over the clients of ``data``."""
    counts, starts = _counts(data)
    size = _batch_size(stack, data, len(models))
    plan = SequentialPlan(counts, starts, size, dtype=torch.float64, device=models.device)
    ordered = models[torch.from_numpy(plan.order).to(models.device)]
    values = torch.zeros(data.total, dtype=torch.float64, device=models.device)
    for batch in plan:
        inputs, targets = data.batch(batch.positions)
        outputs = stack.forward({name: tensor[: batch.active] for name, tensor in ordered.tensors.items()}, inputs)
        real = batch.weights > 0
        values[batch.positions[real] - data.offsets[0]] = statistic(outputs, targets).double()[real]
    return values


def _means_of_common(
    stack: Stack, models: Models, data: ClientData, statistics: Mapping[str, Statistic], observe: Observe | None
) -> dict[str, Tensor]:
    one = {name: tensor[:1] for name, tensor in models.tensors.items()}
    first, total = int(data.offsets[0]), data.total
    width = _batch_size(stack, data, 1, most=LONGEST)
    collected: dict[str, list[Tensor]] = {name: [] for name in statistics}
    for begin in range(0, total, width):
        positions = torch.arange(begin, min(begin + width, total), device=data.offsets.device) + first
        inputs, targets = data.batch(positions.unsqueeze(0))
        outputs = stack.forward(one, inputs)
        for name, statistic in statistics.items():
            collected[name].append(data.weighed(positions, statistic(outputs, targets)[0].double()))
        if observe is not None:
            observe(positions - first, outputs[0])
    owners, sizes = data.owners(), data.sizes.to(models.device)
    result = {}
    for name, parts in collected.items():
        sums = torch.zeros(data.k, dtype=torch.float64, device=models.device)
        if parts:
            sums.index_add_(0, owners, torch.cat(parts))
        result[name] = sums / sizes
    return result


def full_gradient(
    stack: Stack, models: Models, data: ClientData, objective: Objective, weights: Tensor | None = None
) -> Models:
    """The gradient of each client's mean loss on all its examples, in evaluation mode: ``(k,)`` rows of parameters.

    ``weights``, flat over the clients' examples, replaces the factor 1/n of each example. The weights of ``data``
    multiply the loss of each; a mean is divided by their sum.
    """
    counts, starts = _counts(data)
    size = _batch_size(stack, data, len(models))
    plan = SequentialPlan(counts, starts, size, dtype=models.dtype, device=models.device)
    order = torch.from_numpy(plan.order).to(models.device)
    ordered = models[order]
    total = {
        name: torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        for name, tensor in ordered.parameters()
    }
    sizes = data.sizes.to(models.device)[order]
    sizes = sizes.where(sizes > 0, 1.0)
    for batch in plan:
        inputs, targets = data.batch(batch.positions)
        # other threads write other rows of the same storage, which autograd must not take for a change of ours
        rows = {name: tensor[: batch.active].data for name, tensor in ordered.tensors.items()}
        share = (batch.weights > 0).to(models.dtype)
        share = share / sizes[: batch.active, None].to(share) if weights is None else share * weights[batch.positions]
        share = data.weighed(batch.positions, share)
        gradients = batch_gradient(stack, rows, models.layout.trained(), inputs, targets, share, objective, train=False)
        for name, gradient in gradients.items():
            total[name][: batch.active] += gradient
    return Models(replace(models.layout, buffers=()), total)[order.argsort()]


def _counts(data: ClientData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return data.n.cpu().numpy(), data.offsets[:-1].cpu().numpy()


def _batch_size(stack: Stack, data: ClientData, rows: int, most: int = 512) -> int:
    entries = rows * prod(data.feature_shape)
    if data.offsets.device.type == "cpu":
        entries = max(entries, stack.entries(rows))
    return max(1, min(most, BATCH_BUDGET // max(1, entries)))
