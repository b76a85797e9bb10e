"""A local step goes down the gradient of the objective that the method states, found by finite differences.

Two epochs minus one epoch of full batches from the same start is one step from a point that is neither the start nor
the anchor, so that a detached, unsquared, doubled or misplaced term shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Algorithm
from coterie.models import Models, ModelSpec
from coterie.testing.recording import Call, Recording
from coterie.testing.subject import FULL_BATCH, Broken, Subject, run
from coterie.testing.toys import LINEAR, MLP, classified
from coterie.training import cross_entropy, means

FEDERATION = classified((7, 4, 9, 5))
LR = 0.1


class At:
    """A client about to take a step; see `coterie.contract.Situation`."""

    def __init__(self, algorithm: Algorithm, call: Call, client: int, theta: Tensor) -> None:
        self.algorithm, self.call, self.client, self.theta = algorithm, call, client, theta

    def value(self, name: str) -> float:
        """A number that the client received or holds."""
        return float(self.call.find(name, self.client))

    def squared_distance(self, name: str) -> Tensor:
        """``||theta - x||^2: (r,)``."""
        return (self.theta - flat(self.call.find(name, self.client))).square().sum(1)

    def along(self, name: str, *, before: bool = False) -> Tensor:
        """``<x, theta>: (r,)``."""
        model = self.call.held[name][self.client] if before else self.call.find(name, self.client)
        return self.theta @ flat(model)


def objective(subject: Subject) -> None:
    """The change of each model in a step is minus the learning rate times the gradient of its stated objective."""
    for model in (LINEAR, MLP):
        if not subject.claims.objective:
            return
        one, two = _after(subject, 1, model), _after(subject, 2, model)
        for name, term in subject.claims.objective.items():
            _require_descent(subject.make(), name, term, one, two)


def _require_descent(algorithm: Algorithm, name: str, term: Callable[[Any], Any], one: Call, two: Call) -> None:
    farthest = 0.0
    for client in range(len(one.site.names)):
        here = _model(one, name, client)
        data = one.site.train.select([client] * (2 * here.d))
        at = flat(here)

        def loss(theta: Tensor, data: Any = data, like: Models = here) -> Tensor:
            stack = one.site.context.stack
            losses: Tensor = means(stack, rows_like(like, theta), data, {"loss": cross_entropy})["loss"]
            return losses

        def regulariser(theta: Tensor, client: int = client) -> Tensor:
            added: Tensor = term(At(algorithm, one, client, theta)) + theta.new_zeros(len(theta))
            return added

        step = flat(_model(two, name, client)) - at
        own, added = -LR * numerical_gradient(loss, at), -LR * numerical_gradient(regulariser, at)
        farthest = max(farthest, float(step.abs().max()))
        if (step - own - added).abs().max() > 1e-8:
            raise _wrong(name, one.site.names[client], step - own, added)
    if farthest < 1e-3:
        raise Broken(f"a step of {name} goes somewhere", "nothing moves", "the model receives no gradient")


def _wrong(name: str, client: str, found: Tensor, added: Tensor) -> Broken:
    """Say how the part of a step that is not the loss's differs from what the stated term makes."""
    expected = f"a step of {name} is -lr times the gradient of the stated objective (finite differences)"
    length = float(added.norm())
    if length and float(found.norm()) < 1e-8:
        got = f"at {client} it is the step of the loss alone: the stated term has no gradient"
        return Broken(expected, got, "a proximal term computed from detached tensors has none")
    ratio = float(found @ added) / length**2 if length else 0.0
    if length and (found - ratio * added).norm() < 1e-6 * found.norm():
        got = f"at {client} the stated term acts {ratio:.4g} times as strongly"
        return Broken(expected, got, "a factor 2 of ||.||^2, a squared norm written as a norm, or a wrong strength")
    got = f"at {client} the step differs by {float((found - added).abs().max()):.3g}"
    return Broken(expected, got, "another anchor, a gradient carried over from another step, or a wrong term")


def _after(subject: Subject, epochs: int, model: ModelSpec) -> Call:
    """The last call of the third round, with so many epochs, after two rounds that are always the same."""
    begin = subject.simulation(FEDERATION, model=model, rounds=2, training=FULL_BATCH)
    run(begin)
    training = replace(FULL_BATCH, epochs=epochs, lr=LR)
    sim = subject.simulation(FEDERATION, model=model, engine=Recording, rounds=3, training=training)
    assert isinstance(sim, Recording)
    sim.load_state_dict(begin.state_dict())
    sim.advance()
    return _frozen(sim.calls[-1], tuple(subject.claims.objective))


def _frozen(call: Call, names: tuple[str, ...]) -> Call:
    """A call whose models are kept as they are now."""
    for name in names:
        if name in call.returned:
            continue
        if not isinstance(getattr(call.site, name, None), Models):
            raise Broken(
                "claims.objective names models that a client returns or holds",
                f"{name} is neither: answers are {', '.join(call.returned) or 'none'}",
                "use the name of an answer or of a state; a difference of models has no objective",
            )
        call.returned[name] = getattr(call.site, name).clone()
    return call


def _model(call: Call, name: str, client: int) -> Models:
    models: Models = call.returned[name][client]
    return models


def flat(values: Models) -> Tensor:
    """The parameters of one row as a vector ``(d,)``."""
    return values.flat()[0]


def rows_like(models: Models, vectors: Tensor) -> Models:
    """Vectors ``(r, d)`` as models."""
    sizes = [models.layout.shapes[name].numel() for name in models.layout.parameters]
    parts = torch.split(vectors, sizes, dim=1)
    shapes = models.layout.shapes
    return Models(
        replace(models.layout, buffers=()),
        {
            name: part.reshape(len(vectors), *shapes[name])
            for name, part in zip(models.layout.parameters, parts, strict=True)
        },
    )


def numerical_gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Central differences of ``function: (r, d) -> (r,)`` at ``(d,)``."""
    step = 1e-6 * torch.eye(len(at), dtype=torch.float64)
    values = function(torch.cat([at + step, at - step]))
    return (values[: len(at)] - values[len(at) :]) / 2e-6
