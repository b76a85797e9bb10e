"""The public loop of a method with its own step is the loop that ``fit`` is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import (
    EXACT,
    RAGGED,
    SHAPES,
    B,
    assert_rows,
    assert_same,
    batches_of,
    plain_fit,
    plan_of,
    ragged,
    stack_of,
    torch_optimiser,
)

from coterie.contract import LocalContext, Site
from coterie.models import Stack, module_of
from coterie.training import TrainingSettings, cross_entropy, own_steps
from coterie.training.keys import client_keys
from coterie.training.optimiser import Optimiser

MOMENTUM = TrainingSettings(epochs=2, batch_size=B, lr=0.1, momentum=0.9, weight_decay=0.05)
SETTINGS = [
    MOMENTUM,
    replace(MOMENTUM, nesterov=True, clip=0.5),
    replace(MOMENTUM, optimizer="adam", lr=0.02),
]


class NoState:
    """A store that holds nothing."""

    def get(self, name: str) -> Any:
        raise KeyError(name)

    def set(self, name: str, value: Any) -> None:
        raise AssertionError(name)


def site_of(stack: Stack, settings: TrainingSettings, counts: tuple[int, ...] = RAGGED) -> Site:
    data = ragged(counts, SHAPES.get("normed-cnn", (6,)) if stack.mixes_examples else (6,))
    return Site(
        clients=torch.arange(data.k), names=[f"client {i}" for i in range(data.k)], round=1, train=data, validation=data,
        context=LocalContext(stack, cross_entropy, settings, 0, 10, "classification", 3), store=NoState(),
    )  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=["momentum", "nesterov-clip", "adam"])
@pytest.mark.parametrize("counts", [RAGGED, (6, 6, 6), (3,)], ids=["ragged", "equal", "one"])
@pytest.mark.parametrize(
    ("name", "executor", "options"),
    [
        ("mlp", "stacked", {}),
        ("mlp", "stacked", {"dropout": 0.3}),
        ("mlp", "vmap", {"dropout": 0.3}),
        ("normed-cnn", "vmap", {}),
        ("normed-cnn", "loop", {}),
        ("frozen-mlp", "stacked", {}),
        ("frozen-mlp", "vmap", {}),
        ("spare", "vmap", {}),
        ("spare", "loop", {}),
    ],
)
def test_the_loop_equals_fit(
    name: str, executor: str, options: dict[str, Any], counts: tuple[int, ...], settings: TrainingSettings
) -> None:
    stack = stack_of(name, executor, **options)
    site = site_of(stack, settings, counts)
    start = stack.initial(4, site.k, distinct=True)
    theta, seen = start.clone(), 0
    for step in site.steps():
        gradient = site.gradient(theta, step)
        assert len(gradient) == len(step.inputs) == len(step.sizes)
        theta = step.update(theta, gradient)
        seen += len(step.inputs)
    fitted, steps = site.fit(start)
    assert_same(theta, fitted)
    assert seen == int(steps.sum())
    if not options:
        plan = plan_of(site.train, epochs=2)
        assert_rows(theta, plain_fit(stack, start, site.train, plan, settings))


def test_a_common_start_and_a_drift() -> None:
    """Row tensors of the method's own are aligned by ``step.rows``; one common row becomes many."""
    stack = stack_of("mlp")
    site = site_of(stack, replace(MOMENTUM, momentum=0.0, weight_decay=0.0))
    start, drift = stack.initial(4, site.k), stack.initial(5, site.k, distinct=True)
    theta = start.clone()
    plain = start.clone()
    plain.materialise()
    for step in site.steps(steps=2):
        theta = step.update(theta, site.gradient(theta, step) + drift[step.rows])
        plain[step.rows] = plain[step.rows] - (site.gradient(plain, step) + drift[step.rows]) * 0.1
    assert_same(theta, plain)
    assert_same(start, stack.initial(4, site.k), rtol=0, atol=0)


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=["momentum", "nesterov-clip"])
@pytest.mark.parametrize(("name", "executor"), [("mlp", "stacked"), ("mlp", "vmap"), ("normed-cnn", "loop")])
def test_both_begin_with_a_momentum_and_leave_the_last_one(
    name: str, executor: str, settings: TrainingSettings
) -> None:
    stack = stack_of(name, executor)
    site = site_of(stack, settings)
    start, one = stack.initial(4, site.k, distinct=True), stack.initial(5, site.k, distinct=True)
    other, before = one.clone(), one.clone()
    theta = start.clone()
    for step in site.steps(momentum=one):
        theta = step.update(theta, site.gradient(theta, step))
    assert_same(theta, site.fit(start, momentum=other).models)
    trained = site.n > 0
    for name_, tensor in one.parameters():
        torch.testing.assert_close(other.tensors[name_], tensor, rtol=0, atol=1e-10)
        torch.testing.assert_close(tensor[~trained], before.tensors[name_][~trained], rtol=0, atol=0)
    moved = [(one.tensors[name_] - tensor).flatten(1).abs().amax(1) for name_, tensor in before.parameters()]
    assert bool((torch.stack(moved).amax(0)[trained] > 1e-3).all())


def test_the_head_alone() -> None:
    stack = stack_of("mlp")
    site = site_of(stack, MOMENTUM)
    start = stack.initial(4, site.k, distinct=True)
    theta = start.clone()
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step)["head"])
    assert_same(theta, site.fit(start, only="head").models)
    assert_same(theta["body"], start["body"], rtol=0, atol=0)


def test_frozen_parameters_stay_whatever_a_method_adds() -> None:
    stack = stack_of("frozen-mlp")
    site = site_of(stack, MOMENTUM)
    start, drift = stack.initial(4, site.k, distinct=True), stack.initial(5, site.k, distinct=True)
    theta = start.clone()
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step) + drift[step.rows])
    for name in ("1.weight", "1.bias"):
        assert torch.equal(theta.tensors[name], start.tensors[name])


def test_a_stack_that_a_state_owns_is_not_touched() -> None:
    stack = stack_of("normed-cnn")
    site = site_of(stack, MOMENTUM)
    kept = stack.initial(4, site.k, distinct=True)
    kept.owned = True
    theta = kept[:]
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step))
    assert_same(kept, stack.initial(4, site.k, distinct=True), rtol=0, atol=0)
    assert_same(theta, site.fit(kept).models)


def test_names_of_batches_decide_which_batches() -> None:
    site = site_of(stack_of("mlp"), MOMENTUM)
    first, again, other = (
        [step.inputs for step in site.steps(batches=batches)] for batches in ("train", "train", "guidance")
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_what_a_step_holds() -> None:
    data = ragged()
    keys = torch.arange(data.k) * 1_000_003
    plan, seen = plan_of(data), set()
    for step, batch in zip(own_steps(data, plan, MOMENTUM, 0.1, keys), plan, strict=True):
        rows = torch.arange(data.k)[step.rows]
        assert step.number == batch.step
        assert rows.tolist() == plan.order[: batch.active].tolist()
        inputs, targets = data.batch(batch.positions)
        assert torch.equal(step.inputs, inputs)
        assert torch.equal(step.targets, targets)
        assert seen.isdisjoint(step.keys.tolist())  # no client and no step shares its dropout with another
        seen |= set(step.keys.tolist())
    assert len(seen) == plan.steps.sum()


def test_equal_clients_need_no_copies() -> None:
    site = site_of(stack_of("mlp"), MOMENTUM, (8, 8))
    assert all(step.rows == slice(None) for step in site.steps())


def test_clipping_is_by_row() -> None:
    """As torch clips each client's own gradient, whatever the others' are; parameters may be numbers."""
    draw = torch.Generator().manual_seed(0)
    rows = {
        "a": torch.randn(3, 2, 2, generator=draw, dtype=torch.float64),
        "b": torch.tensor([0.1, 100.0, -2.0], dtype=torch.float64),
    }
    expected = []
    for row in range(3):
        own = [torch.nn.Parameter(tensor[row].clone()) for tensor in rows.values()]
        for parameter, tensor in zip(own, rows.values(), strict=True):
            parameter.grad = tensor[row].clone()
        torch.nn.utils.clip_grad_norm_(own, 2.5)
        expected.append([parameter.grad for parameter in own])
    theta = {name: torch.zeros_like(tensor) for name, tensor in rows.items()}
    optimiser = Optimiser(TrainingSettings(clip=2.5), 1.0)
    optimiser.update(theta, {name: tensor.clone() for name, tensor in rows.items()})
    for row in range(3):
        for tensor, clipped in zip(theta.values(), expected[row], strict=True):
            torch.testing.assert_close(-tensor[row], clipped, **EXACT)


# --- momentum that stays, and models that stay -------------------------------------------------------------------

PERSISTENT = [
    replace(MOMENTUM, weight_decay=0.0),
    MOMENTUM,
    replace(MOMENTUM, nesterov=True),
    replace(MOMENTUM, momentum=0.0),
]


@pytest.mark.parametrize("settings", PERSISTENT, ids=["momentum", "decay", "nesterov", "none"])
@pytest.mark.parametrize("counts", [RAGGED, (2, B, 3 * B + 1), (6, 6, 6)], ids=["ragged", "ascending", "equal"])
def test_momentum_goes_on_in_the_next_loop(settings: TrainingSettings, counts: tuple[int, ...]) -> None:
    """Two loops from models of their own are one ``torch.optim.SGD`` whose parameters are overwritten in between."""
    stack = stack_of("mlp")
    site = site_of(stack, settings, counts)
    starts = [stack.initial(seed, site.k, distinct=True) for seed in (4, 5)]
    momentum, ends, between = starts[0].zeros(), [], []
    for start, batches in zip(starts, ("one", "two"), strict=True):
        theta = start
        for step in site.steps(batches=batches, momentum=momentum):
            theta = step.update(theta, site.gradient(theta, step))
        ends.append(theta.clone())
        between.append(momentum.clone())
    for row in range(site.k):
        module = module_of(stack, starts[0], row).train()
        optimiser = torch_optimiser(list(module.parameters()), settings)
        for number, batches in enumerate(("one", "two")):
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(starts[number].tensors[name][row])
            keys = client_keys(0, site.names, 1, f"batches:{batches}")
            for positions in batches_of(plan_of(site.train, epochs=2, keys=keys), row):
                inputs, targets = site.train.batch(positions)
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(inputs.double()), targets).backward()
                optimiser.step()
            for name, parameter in module.named_parameters():
                torch.testing.assert_close(ends[number].tensors[name][row], parameter.detach(), **EXACT)
                if settings.momentum:
                    kept = optimiser.state[parameter].get("momentum_buffer") if counts[row] else None
                    expected = torch.zeros_like(parameter) if kept is None else kept
                    torch.testing.assert_close(between[number].tensors[name][row], expected, **EXACT)
    if settings.momentum:
        assert bool((momentum.flat() != 0).any(1).eq(torch.tensor(counts) > 0).all())
    else:
        assert not momentum.flat().any()


def test_momentum_that_is_given_is_used() -> None:
    """theta - lr (0.9 v + g), where v belongs to the client and not to its place among those that still train."""
    stack = stack_of("mlp")
    site = site_of(stack, replace(MOMENTUM, weight_decay=0.0), (2, 7, 4))
    theta, momentum = stack.initial(4, 3, distinct=True), stack.initial(9, 3, distinct=True)
    expected = theta.flat() - 0.1 * (0.9 * momentum.flat())
    for step in site.steps(steps=1, momentum=momentum):
        gradient = site.gradient(theta, step)
        expected[step.rows] -= 0.1 * gradient.flat()
        theta = step.update(theta, gradient)
    torch.testing.assert_close(theta.flat(), expected, **EXACT)


def test_without_it_momentum_starts_at_zero_in_each_loop() -> None:
    stack = stack_of("mlp")
    site = site_of(stack, MOMENTUM)
    start = stack.initial(4, site.k, distinct=True)
    once, again = start, start
    for step in site.steps():
        once = step.update(once, site.gradient(once, step))
    for step in site.steps(momentum=start.zeros()):
        again = step.update(again, site.gradient(again, step))
    assert_same(once, again, rtol=0, atol=0)


@pytest.mark.parametrize("counts", [RAGGED, (6, 6, 6), (3,)], ids=["ragged", "equal", "one"])
@pytest.mark.parametrize("name", ["mlp", "normed-cnn"])
def test_models_that_no_step_returned_are_left_alone(name: str, counts: tuple[int, ...]) -> None:
    stack = stack_of(name)
    site = site_of(stack, replace(MOMENTUM, momentum=0.0), counts)
    start, other = (stack.initial(seed, site.k, distinct=True) for seed in (4, 5))
    theta, moved, results = start, other, []
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step))
        moved = step.update(other, site.gradient(other, step))  # from the same models in every step
        results.append(moved)
    assert_same(start, stack.initial(4, site.k, distinct=True), rtol=0, atol=0)
    assert_same(other, stack.initial(5, site.k, distinct=True), rtol=0, atol=0)
    assert_same(theta, site.fit(start).models)  # and the two paths do not meet
    (name, *_) = other.tensors
    assert len({result.tensors[name].data_ptr() for result in results}) == len(results)


def test_what_is_kept_of_an_earlier_loop_stays() -> None:
    stack = stack_of("mlp")
    site = site_of(stack, MOMENTUM)
    theta = stack.initial(4, site.k, distinct=True)
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step))
    kept, copy = theta, theta.clone()
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step))
    assert_same(kept, copy, rtol=0, atol=0)
    assert not torch.equal(kept.flat(), theta.flat())


def test_a_step_returns_its_own_models() -> None:
    """What the loop itself returned is changed in place, without a copy for each step."""
    site = site_of(stack_of("mlp"), MOMENTUM)
    theta, seen = site.context.stack.initial(4, site.k, distinct=True), set()
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step))
        seen.add(id(theta))
    assert len(seen) == 1


def test_two_models_of_one_loop_have_two_optimisers() -> None:
    """Interleaved in one loop or trained in two loops of their own: the same."""
    stack = stack_of("mlp", "stacked")
    site = site_of(stack, MOMENTUM)
    a, b = stack.initial(1, site.k, distinct=True), stack.initial(50, site.k, distinct=True)
    one, other = a, b
    for step in site.steps():
        one = step.update(one, site.gradient(one, step))
        other = step.update(other, site.gradient(other, step), "other")
    assert_same(one, site.fit(a).models, **EXACT)
    assert_same(other, site.fit(b).models, **EXACT)


def test_a_part_alone_can_be_updated() -> None:
    stack = stack_of("mlp", "stacked")
    site = site_of(stack, MOMENTUM)
    start = stack.initial(1, site.k, distinct=True)
    theta = start
    for step in site.steps():
        theta = step.update(theta, site.gradient(theta, step)["head"])
    assert_same(theta, site.fit(start, only="head").models, **EXACT)


def test_a_shift_moves_the_active_rows_and_nothing_else() -> None:
    stack = stack_of("mlp", "stacked")
    site = site_of(stack, MOMENTUM)
    start = stack.initial(1, site.k, distinct=True)
    before, moved = start.flat(), start
    last = None
    for step in site.steps():
        change = start[step.rows] * 0.0 + 1.0
        moved, last = step.shift(moved, change), step
    assert last is not None
    torch.testing.assert_close(moved.flat(), before + site.fit(start).steps[:, None], rtol=0, atol=1e-12)
    assert torch.equal(start.flat(), before)


def test_weights_of_examples_multiply_their_losses() -> None:
    """A weight of 0 is as good as other data; of 2 for all, as twice the learning rate."""
    stack, plain = stack_of("mlp", "stacked"), TrainingSettings(epochs=2, batch_size=B, lr=0.1)
    site = site_of(stack, plain)
    start = stack.initial(1, site.k, distinct=True)
    everything = torch.full((int(site.n.sum()),), 2.0, dtype=torch.float64)
    assert_same(site.fit(start, weights=everything).models, site.fit(start, lr=0.2).models, **EXACT)
    some = torch.rand(len(everything), dtype=torch.float64)
    fitted = site.fit(start, weights=some).models
    alone = site_of(stack, plain)
    row = int(site.n.argmax())
    alone.clients, alone.names = alone.clients[[row]], (site.names[row],)
    alone.train = site.train.select([row])
    begin = int(site.train.offsets[row])
    mine = alone.fit(start[[row]], weights=some[begin : begin + int(site.n[row])]).models
    assert_same(fitted[[row]], mine, **EXACT)
    assert not torch.allclose(fitted.flat(), site.fit(start).models.flat())


def test_losses_of_examples_and_their_means() -> None:
    stack = stack_of("mlp", "stacked")
    site = site_of(stack, MOMENTUM)
    models = stack.initial(1, site.k, distinct=True)
    losses = site.example_losses("train", models)
    assert losses.shape == (int(site.n.sum()),)
    counted = site.n > 0
    torch.testing.assert_close(site.per_client(losses)[counted], site.loss("train", models)[counted], **EXACT)
    for row in range(site.k):
        inputs, targets = site.train.client(row)
        with torch.no_grad():
            outputs = module_of(stack, models, row).eval()(inputs.double())
        begin = int(site.train.offsets[row])
        expected = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        torch.testing.assert_close(losses[begin : begin + len(targets)], expected, **EXACT)
