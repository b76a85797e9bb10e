"""A local step goes down the gradient of the objective that the method states, found by finite differences.

Two epochs minus one epoch of full batches from the same start is one step from a point that is neither the start nor
the anchor, so that a detached, unsquared, doubled or misplaced term shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from method_cases import CASES, Case, flat

from coterie.models import Models, ModelSpec
from coterie.training import cross_entropy, means
from toys import FULL_BATCH, LINEAR, MLP, Call, Recording, classified, run, simulation

FEDERATION = classified((7, 4, 9, 5))
LR = 0.1
OPTIONS = {
    "fedprox": {"mu": 0.7},
    "fedprox-ft": {"mu": 0.7},
    "ditto": {"lambda": 0.7},
    "fedamp": {"lambda": 0.7, "alpha": 0.4},
    "pgfed": {"mu": 0.7},
    "pgfedmo": {"mu": 0.7},
}
STEPS = [(case, name, spec) for case in CASES for name in case.terms for spec in (LINEAR, MLP)]


def after(case: Case, epochs: int, model: ModelSpec) -> Call:
    """The third round, with so many epochs, after two rounds that are always the same."""
    begin = simulation(FEDERATION, case.make(**OPTIONS.get(case.name, {})), model, rounds=2, training=FULL_BATCH)
    run(begin)
    training = replace(FULL_BATCH, epochs=epochs, lr=LR)
    sim = simulation(
        FEDERATION, case.make(**OPTIONS.get(case.name, {})), model, engine=Recording, rounds=3, training=training
    )  # fmt: skip
    sim.load_state_dict(begin.state_dict())
    sim.advance()
    call = sim.calls[-1]
    call.returned.setdefault("theta", call.site.theta.clone())
    return call


def rows_like(models: Models, vectors: torch.Tensor) -> Models:
    """Vectors ``(r, d)`` as models."""
    sizes = [models.layout.shapes[name].numel() for name in models.layout.parameters]
    parts = vectors.split(sizes, dim=1)
    return Models(
        models.layout,
        {
            name: part.reshape(len(vectors), *models.layout.shapes[name])
            for name, part in zip(models.layout.parameters, parts, strict=True)
        },
    )


def numerical_gradient(objective: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    """Central differences of ``objective: (r, d) -> (r,)``."""
    step = 1e-6 * torch.eye(len(at), dtype=torch.float64)
    values = objective(torch.cat([at + step, at - step]))
    return (values[: len(at)] - values[len(at) :]) / 2e-6


@pytest.mark.parametrize(("case", "name", "model"), STEPS, ids=[f"{c.id}-{n}-{m.name}" for c, n, m in STEPS])
def test_a_step_is_minus_the_gradient_of_the_objective(case: Case, name: str, model: ModelSpec) -> None:
    one, two = after(case, 1, model), after(case, 2, model)
    algorithm = case.make(**OPTIONS.get(case.name, {}))
    pulled = 0.0
    for client in range(4):
        here = flat(one.returned[name][client])
        data = one.site.train.select([client] * (2 * len(here)))

        def objective(vectors: torch.Tensor, client: int = client, data: object = data) -> torch.Tensor:
            models = rows_like(one.returned[name], vectors)
            loss = means(one.site.context.stack, models, data, {"loss": cross_entropy})["loss"]  # type: ignore[arg-type]

            def distance(received: str) -> torch.Tensor:
                anchor = flat(one.received[received][client])
                return (vectors - anchor).square().sum(1)

            distance.along = lambda direction: vectors @ direction  # type: ignore[attr-defined]
            return loss + case.terms[name](algorithm, one, client, distance)

        gradient = numerical_gradient(objective, here)
        moved = flat(two.returned[name][client]) - here
        torch.testing.assert_close(moved, -LR * gradient, rtol=0, atol=1e-8)
        pulled = max(pulled, float(moved.abs().max()))
    assert pulled > 1e-3
