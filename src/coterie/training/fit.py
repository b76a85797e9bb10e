"""Local training of k clients side by side, equal to training each of them alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.models.dropout import step_keys
from coterie.training.batches import BatchPlan
from coterie.training.fused import FusedStep, Gradients
from coterie.training.in_turn import fit_in_turn, gradient_in_turn
from coterie.training.losses import OF_ANY_ROWS, Objective, slope_of
from coterie.training.memory import Memories, Memory, Nothing
from coterie.training.optimiser import Optimiser, Pull
from coterie.training.settings import ProxPlace, TrainingSettings


class Fitted(NamedTuple):
    """What local training returns: the models, and the steps each client took, ``(k,)`` int64."""

    models: Models
    steps: Tensor


def batch_gradient(
    stack: Stack,
    tensors: Mapping[str, Tensor],
    names: tuple[str, ...],
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    objective: Objective,
    *,
    train: bool = True,
    sizes: Tensor | None = None,
    keys: Tensor | None = None,
) -> dict[str, Tensor]:
    """Gradients of every row's own weighted loss, ``{name: (a, *shape)}``, by products in the stack's precision.

    Rows are independent, so the gradient of the sum of the losses is the stack of the gradients. Parameters that no
    row's loss depends on are left out.
    """
    if stack.executor == "loop" and objective in OF_ANY_ROWS:
        return gradient_in_turn(
            stack, tensors, names, inputs, targets, weights, objective, train=train, sizes=sizes, keys=keys
        )
    if stack.executor == "stacked":
        outputs, back = stack.traced(tensors, inputs, train=train, keys=keys)
        kept = Gradients(names)
        back(slope_of(objective, outputs, targets, weights), kept)
        return {name: kept.found[name].to(tensors[name].dtype) for name in names}
    leaves = {name: tensors[name].detach().requires_grad_() for name in names}
    with stack.lowering():
        outputs = stack.forward({**tensors, **leaves}, inputs, train=train, sizes=sizes, keys=keys)
    if not names:  # the part to train is empty; batch statistics have moved
        return {}
    loss = (objective(outputs.to(stack.dtype), targets) * weights).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: gradient.contiguous() for name, gradient in zip(names, gradients, strict=True) if gradient is not None
    }


def fit(
    stack: Stack,
    models: Models,
    data: ClientData,
    plan: BatchPlan,
    settings: TrainingSettings,
    lr: float,
    objective: Objective,
    *,
    dropout_keys: Tensor,
    anchor: Models | None = None,
    strength: Tensor | None = None,
    prox_place: ProxPlace = "gradient",
    only: str = "all",
    memory: Memory | None = None,
    example_weights: Tensor | None = None,
) -> Fitted:
    """Train rows ``models: (k,)`` on ``data`` of k clients by the batches of ``plan``; the input stays.

    ``strength: (k,)`` times ``theta - anchor`` is added to the gradient where an ``anchor: (k,)`` is given.
    The optimiser goes on from ``memory`` where it is given, which is up to date afterwards.
    ``example_weights``, flat over the clients' examples, multiply the loss of each example in the mean of its batch,
    and so do the weights of ``data``.
    """
    order = torch.from_numpy(plan.order)
    sorted_rows = bool((order == torch.arange(len(order))).all())
    working = models.clone() if sorted_rows or models.common else models[order]
    working.materialise()
    pull = None
    if anchor is not None and strength is not None and bool((strength != 0).any()):
        ordered = anchor if sorted_rows else anchor[order]
        pull = Pull(ordered.tensors, strength[order.to(strength.device)], prox_place)
    optimiser = Optimiser(settings, lr, pull)
    if memory is not None:
        optimiser.begin(memory, order)
    names = models.layout.trained(only)
    row_keys = dropout_keys[order.to(dropout_keys.device)]
    if stack.executor == "loop":
        fit_in_turn(stack, working, data, plan, optimiser, names, objective, row_keys, example_weights)
    else:
        _fit_together(stack, working, data, plan, optimiser, names, objective, row_keys, example_weights)
    steps = torch.from_numpy(plan.steps).to(models.device)
    if memory is not None:
        optimiser.remember(memory, order)
    if sorted_rows:
        return Fitted(working, steps)
    return Fitted(working[order.argsort()], steps)


def _fit_together(
    stack: Stack,
    working: Models,
    data: ClientData,
    plan: BatchPlan,
    optimiser: Optimiser,
    names: tuple[str, ...],
    objective: Objective,
    row_keys: Tensor,
    example_weights: Tensor | None,
) -> None:
    """Train the rows of ``working: (k,)`` in place, one step of all before the next; rows stand as in ``plan``."""
    trained = frozenset(names)
    fused = stack.executor == "stacked" and optimiser.fusible and len(names) > 0
    active, tensors, sinks = -1, working.tensors, FusedStep(optimiser, working.tensors, trained)
    for batch in plan:
        if batch.active != active:
            active = batch.active
            tensors = {name: tensor[:active] for name, tensor in working.tensors.items()}
            sinks = FusedStep(optimiser, tensors, trained)
        inputs, targets = data.batch(batch.positions)
        weights = data.weighed(batch.positions, batch.weights)
        keys = step_keys(row_keys[:active], batch.step) if stack.draws else None
        if example_weights is not None:
            weights = weights * example_weights[batch.positions - data.offsets[0]].to(weights)
        if fused:
            outputs, back = stack.traced(tensors, inputs, train=True, keys=keys)
            back(slope_of(objective, outputs, targets, weights), sinks)
            continue
        gradients = batch_gradient(
            stack, tensors, names, inputs, targets, weights, objective, sizes=batch.sizes, keys=keys
        )
        if optimiser.pull is not None:  # it is part of the loss, which then depends on all parameters
            gradients = {n: gradients[n] if n in gradients else torch.zeros_like(tensors[n]) for n in names}
        optimiser.update(working.tensors, gradients)


@dataclass
class Step:
    """One step of a method's own loop.

    ``rows`` are the clients that still train, those with most steps first (a full slice where that changes
    nothing); ``inputs: (a, B, ...)``, ``gradient`` and whatever the method adds to it are aligned to them.
    """

    number: int
    rows: Tensor | slice
    inputs: Tensor
    targets: Tensor
    weights: Tensor
    sizes: Tensor
    keys: Tensor
    optimisers: Optimisers
    own_weights: Tensor | None = None  # of the examples, (a, B); they are in ``weights`` already
    trained: list[Models] = field(default_factory=list)  # what the steps of this loop have returned so far
    buffers: dict[str, Tensor] = field(default_factory=dict)  # batch statistics after the last gradient
    unused: frozenset[str] = frozenset()  # parameters that the last gradient's loss does not depend on

    def weighed(self, shares: Tensor) -> Tensor:
        """``shares: (a, B)`` times the weights of the examples themselves; unchanged where they have none."""
        return shares if self.own_weights is None else shares * self.own_weights.to(shares)

    def update(self, theta: Models, gradient: Models, optimiser: str = "") -> Models:
        """Apply the optimiser's step to the active rows of ``theta: (k,)`` and return the result.

        ``gradient: (a,)`` holds one row for each active client and is used up; where it has parameters of a part of
        ``theta`` only, the others stay, and so do those that are frozen or have no part in the loss. Models that an
        earlier step of this loop returned are changed in place; any others are left as they are, and a changed copy is
        returned. A method that trains two models in one loop gives the second an ``optimiser`` of its own, by any name.
        """
        if not any(theta is known for known in self.trained) or theta.owned:
            theta = theta.clone()
            theta.materialise()
            self.trained.append(theta)
        own = theta[self.rows]
        for name in self.buffers.keys() & own.tensors.keys():
            own.tensors[name].copy_(self.buffers[name])
        gradients = {
            name: tensor.contiguous()
            for name, tensor in gradient.parameters()
            if name not in theta.layout.frozen and (name not in self.unused or bool(tensor.any()))
        }
        self.optimisers.of(optimiser, theta, gradient).update(own.tensors, gradients)
        if not isinstance(self.rows, slice):
            theta[self.rows] = own
        return theta

    def shift(self, theta: Models, change: Models) -> Models:
        """``theta: (k,)`` plus ``change: (a,)`` in the active rows, without any optimiser; the argument stays."""
        moved = theta.clone()
        moved.materialise()
        moved[self.rows] = moved[self.rows] + change
        return moved

    def settle(self, theta: Models) -> None:
        """Give the active rows of ``theta: (k,)`` the batch statistics after the last gradient, in place."""
        for name, statistics in self.buffers.items():
            theta.tensors[name][self.rows] = statistics


@dataclass
class Optimisers:
    """The optimisers of one loop, by the name of what they train; clients' rows are trained in ``order: (k,)``."""

    settings: TrainingSettings
    lr: float
    order: Tensor
    memories: Memories
    found: dict[str, tuple[Optimiser, Memory | None]] = field(default_factory=dict)

    def of(self, name: str, theta: Models, gradient: Models) -> Optimiser:
        """The optimiser of those parameters of ``theta: (k,)`` that have a gradient; begun at the loop's first step."""
        if name not in self.found:
            trained = Models(gradient.layout, {own: theta.tensors[own] for own, _ in gradient.parameters()})
            optimiser, memory = Optimiser(self.settings, self.lr), self.memories.recall(name, trained)
            if memory is not None:
                optimiser.begin(memory, self.order)
            self.found[name] = optimiser, memory
        return self.found[name][0]

    def keep(self) -> None:
        """Let each remember what it has come to."""
        for name, (optimiser, memory) in self.found.items():
            if memory is not None:
                optimiser.remember(memory, self.order)
                self.memories.keep(name, memory)


def own_steps(
    data: ClientData,
    plan: BatchPlan,
    settings: TrainingSettings,
    lr: float,
    dropout_keys: Tensor,
    memories: Memories | None = None,
) -> Iterator[Step]:
    """The loop that ``fit`` is made of, for methods with their own step.

    Optimisers go on from their ``memories``, which are up to date when the loop has ended or was left.
    """
    order = torch.from_numpy(plan.order)
    identity = bool((order == torch.arange(len(order))).all())
    optimisers, trained = Optimisers(settings, lr, order, memories or Nothing()), list[Models]()
    try:
        for batch in plan:
            everyone = identity and batch.active == len(order)
            rows: Tensor | slice = slice(None) if everyone else order[: batch.active].to(data.offsets.device)
            inputs, targets = data.batch(batch.positions)
            keys = step_keys(dropout_keys[rows], batch.step)
            own = None if data.weights is None else data.weights[batch.positions]
            weights = data.weighed(batch.positions, batch.weights)
            yield Step(batch.step, rows, inputs, targets, weights, batch.sizes, keys, optimisers, own, trained)
    finally:
        optimisers.keep()
