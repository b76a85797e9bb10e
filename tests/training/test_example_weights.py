"""Weights of examples: those of the data, in training, in means and in gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import EXACT, SHAPES, assert_same, plan_of, ragged, stack_of
from torch import Tensor

from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.training import TrainingSettings, batch_gradient, cross_entropy, fit, full_gradient, hits, means, own_steps
from coterie.training.batches import BatchPlan

ROWS = [("mlp", "stacked"), ("mlp", "vmap"), ("mlp", "loop"), ("cnn", "loop"), ("scaled", "vmap")]
SETTINGS = TrainingSettings(epochs=3, batch_size=4, lr=0.1, momentum=0.9)
WHOLE = 1000
"""A batch size that no client reaches."""


def prepared(name: str, executor: str) -> tuple[Stack, Models, ClientData, Tensor]:
    """A stack, models of several clients, their data and a weight an example."""
    stack, data = stack_of(name, executor), ragged(shape=SHAPES.get(name, (6,)))
    weights = torch.rand(data.total, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    return stack, stack.initial(3, data.k, distinct=True), data, weights


def trained(stack: Stack, models: Models, data: ClientData, size: int = 4, weights: Tensor | None = None) -> Models:
    keys = torch.arange(data.k)
    plan = plan_of(data, size)
    return fit(
        stack, models, data, plan, SETTINGS, 0.1, cross_entropy, dropout_keys=keys, example_weights=weights
    ).models


def equal(one: Models, other: Models) -> None:
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_they_multiply_the_losses_as_those_of_a_method_do(name: str, executor: str) -> None:
    stack, models, data, weights = prepared(name, executor)
    weighed = replace(data, weights=weights)
    equal(trained(stack, models, weighed), trained(stack, models, data, weights=weights))
    both = trained(stack, models, weighed, weights=weights.flip(0))
    assert_same(both, trained(stack, models, data, weights=weights * weights.flip(0)), **EXACT)
    plain = trained(stack, models, data)
    equal(trained(stack, models, replace(data, weights=torch.ones_like(weights))), plain)
    assert not torch.equal(both.flat(), plain.flat())


@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_a_whole_number_at_full_batch_is_so_many_copies(name: str, executor: str) -> None:
    stack, models, data, _ = prepared(name, executor)
    times = torch.arange(data.total) % 3  # some count twice, some not at all
    times[data.offsets[2]] = 1  # the client with one example
    index = torch.repeat_interleave(torch.arange(data.total), times)
    counts = torch.stack([own.sum() for own in torch.split(times, data.n.tolist())])
    copies = replace(data, index=index, offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
    mean = (counts.double() / data.n).where(data.n > 0, 1.0)
    weighed = replace(data, weights=times / mean[data.owners()])
    assert_same(trained(stack, models, weighed, WHOLE), trained(stack, models, copies, WHOLE), **EXACT)
    for of in (models, Models(models.layout, {n: t[:1] for n, t in models.tensors.items()}).repeat(data.k)):
        statistics: dict[str, Any] = {"loss": cross_entropy, "accuracy": hits}
        found, expected = (means(stack, of, each, statistics) for each in (weighed, copies))
        for name, values in found.items():
            torch.testing.assert_close(values, expected[name], **EXACT, equal_nan=True)
        gradients = [full_gradient(stack, of, each, cross_entropy) for each in (weighed, copies)]
        assert_same(gradients[0], gradients[1], **EXACT)


def test_a_step_of_ones_own_has_them_in_its_weights() -> None:
    stack, models, data, weights = prepared("mlp", "stacked")
    plan: BatchPlan = plan_of(data)
    seen = 0
    steps = own_steps(replace(data, weights=weights), plan, SETTINGS, 0.1, torch.arange(data.k))
    for step, batch, plain in zip(
        steps, plan_of(data), own_steps(data, plan_of(data), SETTINGS, 0.1, torch.arange(data.k)), strict=True
    ):
        own = weights[batch.positions]
        assert torch.equal(step.weights, batch.weights * own)
        assert torch.equal(step.weighed(torch.ones_like(own)), own)
        assert plain.weighed(own) is own
        seen += 1
        rows = models[step.rows]
        found = batch_gradient(
            stack, rows.tensors, rows.layout.parameters, step.inputs, step.targets, step.weights, cross_entropy
        )
        assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    assert seen == plan.longest
