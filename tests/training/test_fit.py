"""Training many clients side by side is training each of them alone, number for number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import EXACT, SHAPES, B, assert_rows, assert_same, plain_fit, plan_of, ragged, stack_of
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.training import Fitted, TrainingSettings, batch_gradient, cross_entropy, fit, full_gradient, squared_error
from coterie.training.keys import client_keys

SGD = TrainingSettings(epochs=3, batch_size=B, lr=0.1)
MOMENTUM = replace(SGD, momentum=0.9, weight_decay=0.05)
SETTINGS = {
    "sgd": SGD,
    "decay": replace(SGD, weight_decay=0.05),
    "momentum": MOMENTUM,
    "nesterov": replace(MOMENTUM, nesterov=True),
    "adam": replace(SGD, optimizer="adam", lr=0.02, weight_decay=0.05),
    "betas": replace(SGD, optimizer="adam", lr=0.02, betas=(0.5, 0.8)),
    "clip": replace(MOMENTUM, clip=0.5),
    "clip-adam": replace(SGD, optimizer="adam", lr=0.02, clip=0.5),
}
ROWS = [
    ("mlp", "stacked"), ("mlp", "vmap"), ("mlp", "loop"),
    ("cnn", "vmap"), ("cnn", "loop"), ("normed-cnn", "vmap"), ("normed-cnn", "loop"), ("gru", "loop"),
    ("scaled", "vmap"), ("scaled", "loop"), ("tied-sequence", "auto"), ("repeated-activation", "stacked"),
    ("repeated-activation", "vmap"), ("frozen-mlp", "stacked"), ("frozen-mlp", "vmap"), ("frozen-mlp", "loop"),
    ("spare", "vmap"), ("spare", "loop"),
]  # fmt: skip


def keys(k: int) -> Tensor:
    return torch.arange(k) * 7919 + 13


def trained(
    stack: Stack, models: Models, data: ClientData, settings: TrainingSettings, plan: Any = None, **options: Any
) -> Fitted:
    options.setdefault("dropout_keys", keys(data.k))
    return fit(stack, models, data, plan or plan_of(data), settings, settings.lr, cross_entropy, **options)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_equals_plain_torch(name: str, executor: str, settings: TrainingSettings) -> None:
    stack = stack_of(name, executor)
    data = ragged(shape=SHAPES.get(name, (6,)))
    models, plan = stack.initial(3, data.k, distinct=True), plan_of(data)
    fitted, steps = trained(stack, models, data, settings, plan)
    assert steps.tolist() == [3, 12, 3, 0, 6, 3]
    # before batch normalisation a bias has gradient zero but for rounding, which Adam divides by its epsilon 1e-8
    noisy = name == "normed-cnn" and settings.optimizer == "adam" and not settings.weight_decay
    assert_rows(fitted, plain_fit(stack, models, data, plan, settings), rtol=0.0, atol=1e-8 if noisy else 1e-10)


@pytest.mark.parametrize("place", ["gradient", "after_step"])
@pytest.mark.parametrize("executor", ["stacked", "vmap", "loop"])
def test_frozen_parameters_stay(executor: str, place: Any) -> None:
    """Neither weight decay nor a pull moves them, whichever part is trained; their gradient is zero."""
    stack, data = stack_of("frozen-mlp", executor), ragged()
    models, anchor = stack.initial(1, data.k, distinct=True), stack.initial(50, data.k, distinct=True)
    pull: dict[str, Any] = {"anchor": anchor, "strength": torch.full((data.k,), 0.5), "prox_place": place}
    for only in ("all", "body", "head"):
        fitted = trained(stack, models, data, SETTINGS["momentum"], only=only, **pull).models
        for name in ("1.weight", "1.bias"):
            assert torch.equal(fitted.tensors[name], models.tensors[name])
        moved = stack.layout.trained(only)
        assert all(not torch.equal(fitted.tensors[name], models.tensors[name]) for name in moved)
    gradient = full_gradient(stack, models, data, cross_entropy)
    assert [name for name, found in gradient.parameters() if not found.any()] == ["1.weight", "1.bias"]


@pytest.mark.parametrize("settings", ["momentum", "adam"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_batch_normalisation_between_linear_layers(executor: str, settings: str) -> None:
    stack = stack_of("normed-mlp", executor)
    data = ragged((B, 3 * B + 2, 2, 0, B - 1))  # no batch of one example, which has no statistics
    models, plan = stack.initial(3, data.k, distinct=True), plan_of(data)
    fitted = trained(stack, models, data, SETTINGS[settings], plan).models
    assert_rows(fitted, plain_fit(stack, models, data, plan, SETTINGS[settings]))
    assert fitted.tensors["2.num_batches_tracked"].tolist() == [3, 12, 3, 0, 3]
    assert not torch.equal(fitted.tensors["2.running_mean"][0], models.tensors["2.running_mean"][0])


@pytest.mark.parametrize("settings", ["momentum", "adam"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_buffers_that_a_forward_pass_replaces(executor: str, settings: str) -> None:
    """Each client goes on with its own, in training only."""
    stack = stack_of("centred", executor)
    data = ragged()
    models, plan = stack.initial(3, data.k, distinct=True), plan_of(data)
    fitted = trained(stack, models, data, SETTINGS[settings], plan).models
    assert_rows(fitted, plain_fit(stack, models, data, plan, SETTINGS[settings]))
    assert fitted.tensors["passes"].tolist() == [3, 12, 3, 0, 6, 3]
    before = fitted.clone()
    full_gradient(stack, fitted, data, cross_entropy)
    assert_same(fitted, before, rtol=0, atol=0)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_padding_never_enters_layers_that_mix_examples(executor: str) -> None:
    stack, data = stack_of("mixing", executor), ragged()
    models, plan = stack.initial(3, data.k, distinct=True), plan_of(data)
    fitted = trained(stack, models, data, MOMENTUM, plan).models
    assert_rows(fitted, plain_fit(stack, models, data, plan, MOMENTUM))


def test_dropout_along_another_axis_depends_on_nobody_else() -> None:
    stack, loop, data = stack_of("steps-first"), stack_of("steps-first", "loop"), ragged()
    assert stack.executor == "vmap"
    models, plan = stack.initial(3, data.k, distinct=True), plan_of(data)
    assert_same(
        trained(stack, models, data, MOMENTUM, plan).models,
        trained(loop, models, data, MOMENTUM, plan_of(data)).models,
    )


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_parameters_without_a_gradient_stay_unless_they_are_pulled(executor: str) -> None:
    stack, data = stack_of("spare", executor), ragged()
    models, anchor = stack.initial(1, data.k, distinct=True), stack.initial(50, data.k, distinct=True)
    fitted = trained(stack, models, data, MOMENTUM).models
    assert torch.equal(fitted.tensors["spare.weight"], models.tensors["spare.weight"])
    pull: dict[str, Any] = {"anchor": anchor, "strength": torch.full((data.k,), 0.5)}
    plan = plan_of(data)
    pulled = trained(stack, models, data, MOMENTUM, plan, **pull).models
    assert_rows(pulled, plain_fit(stack, models, data, plan, MOMENTUM, **pull))
    gradient = full_gradient(stack, models, data, cross_entropy)
    assert [name for name, found in gradient.parameters() if not found.any()] == ["spare.weight", "spare.bias"]


@pytest.mark.parametrize("settings", ["decay", "momentum", "clip", "adam"])
def test_a_layer_that_a_batch_leaves_out_stays(settings: str) -> None:
    stack, data = stack_of("routed"), ragged()
    assert stack.executor == "loop"
    models, plan = stack.initial(1, data.k, distinct=True), plan_of(data)
    fitted = trained(stack, models, data, SETTINGS[settings], plan).models
    assert_rows(fitted, plain_fit(stack, models, data, plan, SETTINGS[settings]))


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_batch_of_one_without_statistics_is_explained(executor: str) -> None:
    stack, data = stack_of("normed-mlp", executor), ragged((B, B + 1))
    with pytest.raises(CoterieError, match=r"one example.*drop_last"):
        trained(stack, stack.initial(0, 2), data, SGD)
    plan = plan_of(data, drop_last=True)
    assert trained(stack, stack.initial(0, 2), data, SGD, plan).steps.tolist() == [3, 3]


@pytest.mark.parametrize("options", [{"steps": 1}, {"steps": 7}, {"epochs": 1}, {"epochs": 2, "drop_last": True}])
@pytest.mark.parametrize(("name", "executor"), [("mlp", "stacked"), ("mlp", "vmap"), ("normed-cnn", "loop")])
def test_epochs_steps_and_dropped_batches(name: str, executor: str, options: dict[str, Any]) -> None:
    stack, data = stack_of(name, executor), ragged(shape=SHAPES.get(name, (6,)))
    models, plan = stack.initial(1, data.k, distinct=True), plan_of(data, **options)
    fitted, steps = trained(stack, models, data, MOMENTUM, plan)
    assert_rows(fitted, plain_fit(stack, models, data, plan, MOMENTUM))
    assert steps.tolist() == plan.steps.tolist()
    assert steps[3] == 0
    if "steps" in options:
        assert set(steps.tolist()) == {0, options["steps"]}


@pytest.mark.parametrize("place", ["gradient", "after_momentum", "after_step"])
@pytest.mark.parametrize("settings", ["sgd", "decay", "momentum", "nesterov", "adam", "clip"])
@pytest.mark.parametrize(("name", "executor"), [("mlp", "stacked"), ("mlp", "loop"), ("normed-cnn", "vmap")])
def test_proximal_pull_of_every_client_its_own(name: str, executor: str, settings: str, place: Any) -> None:
    stack, data = stack_of(name, executor), ragged(shape=SHAPES.get(name, (6,)))
    models, anchor = stack.initial(1, data.k, distinct=True), stack.initial(50, data.k, distinct=True)
    plan, strength = plan_of(data), torch.tensor([0.5, 2.0, 0.0, 3.0, 0.1, 4.0], dtype=torch.float64)
    pull: dict[str, Any] = {"anchor": anchor, "strength": strength, "prox_place": place}
    fitted = trained(stack, models, data, SETTINGS[settings], plan, **pull).models
    assert_rows(fitted, plain_fit(stack, models, data, plan, SETTINGS[settings], **pull))


def test_after_momentum_is_the_published_loop() -> None:
    """FedEM's ProxSGD, written out: the pull joins the direction after momentum and Nesterov."""
    stack, data = stack_of("mlp", "stacked"), ragged((6,))
    models, anchor = stack.initial(1), stack.initial(2)
    plan, settings, pull = plan_of(data), SETTINGS["nesterov"], 1.5
    place: dict[str, Any] = {"anchor": anchor, "strength": torch.tensor([pull]), "prox_place": "after_momentum"}
    fitted = trained(stack, models, data, settings, plan, **place).models

    theta = {name: tensor[0].clone().requires_grad_() for name, tensor in models.tensors.items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    for batch in plan:
        inputs, targets = data.batch(batch.positions[0, : int(batch.sizes[0])])
        outputs = torch.func.functional_call(stack.module, theta, (inputs.double(),))
        gradients = torch.autograd.grad(nn.functional.cross_entropy(outputs, targets), list(theta.values()))
        with torch.no_grad():
            for (name, tensor), gradient in zip(theta.items(), gradients, strict=True):
                total = gradient + settings.weight_decay * tensor
                velocity[name] = settings.momentum * velocity[name] + total
                direction = total + settings.momentum * velocity[name]
                tensor -= settings.lr * (direction + pull * (tensor - anchor.tensors[name][0]))
    assert_rows(fitted, [{name: tensor.detach() for name, tensor in theta.items()}])


@pytest.mark.parametrize("place", ["gradient", "after_momentum", "after_step"])
@pytest.mark.parametrize("executor", ["stacked", "loop"])
def test_the_strongest_pull_lands_on_the_anchor(executor: str, place: Any) -> None:
    stack, data = stack_of("mlp", executor), ragged((2, 5))
    models, anchor = stack.initial(1, 2, distinct=True), stack.initial(9, 2, distinct=True)

    def nothing(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.0 * outputs.sum(-1)

    fitted = fit(
        stack, models, data, plan_of(data, steps=1), SGD, 0.1, nothing, dropout_keys=keys(2), anchor=anchor,
        strength=torch.full((2,), 10.0), prox_place=place,
    ).models  # fmt: skip
    assert_same(fitted, anchor, rtol=0.0, atol=1e-15)


@pytest.mark.parametrize("only", ["head", "body"])
@pytest.mark.parametrize("settings", ["momentum", "adam", "clip"])
@pytest.mark.parametrize(("name", "executor"), [("mlp", "stacked"), ("mlp", "vmap"), ("normed-cnn", "loop")])
def test_a_frozen_part_stays_bit_for_bit(name: str, executor: str, settings: str, only: str) -> None:
    stack, data = stack_of(name, executor), ragged(shape=SHAPES.get(name, (6,)))
    models, plan = stack.initial(1, data.k, distinct=True), plan_of(data)
    anchor = stack.initial(50, data.k, distinct=True)
    pull: dict[str, Any] = {"anchor": anchor, "strength": torch.full((data.k,), 0.7), "only": only}
    fitted = trained(stack, models, data, SETTINGS[settings], plan, **pull).models
    frozen = models["body" if only == "head" else "head"]
    assert frozen.d > 0
    for part, tensor in frozen.parameters():
        assert torch.equal(fitted.tensors[part], tensor)
    for part, _ in models[only].parameters():
        assert not torch.equal(fitted.tensors[part][1], models.tensors[part][1])
    assert_rows(fitted, plain_fit(stack, models, data, plan, SETTINGS[settings], **pull))


@pytest.mark.parametrize("executor", ["stacked", "vmap", "loop"])
def test_a_model_without_a_body_has_none_to_train(executor: str) -> None:
    data = ragged()
    stack = Stack(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (6,), executor=executor, dtype=torch.float64)  # type: ignore[arg-type]
    models = stack.initial(0, data.k, distinct=True)
    assert_same(trained(stack, models, data, SETTINGS["clip"], only="body").models, models, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mlp", "normed-cnn"])
def test_the_input_is_not_changed(name: str) -> None:
    stack, data = stack_of(name), ragged(shape=SHAPES.get(name, (6,)))
    for models in (stack.initial(1, data.k), stack.initial(1, data.k, distinct=True)):
        anchor, before = stack.initial(2, data.k), models.clone()
        strength = torch.ones(data.k)
        fitted = trained(stack, models, data, MOMENTUM, anchor=anchor, strength=strength).models
        assert_same(models, before, rtol=0, atol=0)
        assert_same(anchor, stack.initial(2, data.k), rtol=0, atol=0)
        assert not fitted.owned
        addresses = {tensor.untyped_storage().data_ptr() for tensor in fitted.tensors.values()}
        assert not addresses & {tensor.untyped_storage().data_ptr() for tensor in models.tensors.values()}


def test_a_common_row_trains_as_its_copies() -> None:
    stack, data = stack_of("normed-cnn"), ragged(shape=(1, 8, 8))
    common = stack.initial(1, data.k)
    copies = common.clone()
    copies.materialise()
    assert common.common
    assert not copies.common
    assert_same(
        trained(stack, common, data, MOMENTUM).models, trained(stack, copies, data, MOMENTUM).models, rtol=0, atol=0
    )


@pytest.mark.parametrize(("name", "executor"), [("mlp", "stacked"), ("normed-cnn", "vmap")])
def test_other_clients_neither_matter_nor_harm(name: str, executor: str) -> None:
    """Alone as in a stack, in any order; another client's NaN stays with that client."""
    stack = stack_of(name, executor, **({"dropout": 0.3} if name == "mlp" else {}))
    data = ragged(shape=SHAPES.get(name, (6,)))
    models, plan = stack.initial(1, data.k, distinct=True), plan_of(data)
    whole = trained(stack, models, data, MOMENTUM, plan).models
    client_key = client_keys(0, [f"client {i}" for i in range(data.k)], 1, "batches:train")
    for chosen in ([4], [5, 0, 1], [1, 2, 3, 4], list(reversed(range(data.k)))):
        part = data.select(chosen)
        some = plan_of(part, keys=client_key[chosen])
        fitted = trained(stack, models[chosen], part, MOMENTUM, some, dropout_keys=keys(data.k)[chosen]).models
        assert_same(fitted, whole[chosen])

    broken = data.inputs.clone()
    broken[: int(data.offsets[1])] = torch.nan
    fitted = trained(stack, models, replace(data, inputs=broken), MOMENTUM, plan).models
    assert fitted.finite().tolist() == [False, True, True, True, True, True]
    assert_same(fitted[1:], whole[1:], rtol=0, atol=0)


@pytest.mark.parametrize("settings", ["momentum", "adam"])
def test_dropout_is_the_same_under_every_executor(settings: str) -> None:
    data = ragged()
    results = []
    for executor in ("stacked", "vmap", "loop"):
        stack = stack_of("mlp", executor, dropout=0.4)
        assert stack.executor == executor
        results.append(trained(stack, stack.initial(1, data.k, distinct=True), data, SETTINGS[settings]).models)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])
    plain = stack_of("mlp", "stacked")
    without = trained(plain, plain.initial(1, data.k, distinct=True), data, SETTINGS[settings]).models
    assert float((results[0].flat() - without.flat()).abs().max()) > 1e-3


def test_dropout_of_rate_zero_is_no_dropout() -> None:
    data, stack = ragged(), stack_of("repeated-activation", "vmap", dropout=0.0)
    models, plan = stack.initial(1, data.k, distinct=True), plan_of(data)
    assert_rows(trained(stack, models, data, MOMENTUM, plan).models, plain_fit(stack, models, data, plan, MOMENTUM))


def test_regression_learns_the_mean_squared_error_over_targets() -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = (5, 2, 7)
    data = ClientData.from_clients(
        [torch.randn(n, 6, generator=draw) for n in sizes], [torch.randn(n, 3, generator=draw) for n in sizes]
    )
    stack = stack_of("mlp")
    models, plan = stack.initial(1, 3, distinct=True), plan_of(data)
    fitted = fit(stack, models, data, plan, SGD, 0.1, squared_error, dropout_keys=keys(3)).models
    for client in range(3):
        row = {name: t[client].clone().requires_grad_() for name, t in models.tensors.items()}
        order = int((plan.order == client).nonzero()[0][0])
        for step in range(int(plan.steps[client])):
            batch = plan.batch(step)
            inputs, targets = data.batch(batch.positions[order, : int(batch.sizes[order])])
            outputs = torch.func.functional_call(stack.module, row, (inputs.double(),))
            loss = nn.functional.mse_loss(outputs, targets.double())
            gradients = torch.autograd.grad(loss, list(row.values()))
            row = {
                name: (t - 0.1 * g).detach().requires_grad_()
                for (name, t), g in zip(row.items(), gradients, strict=True)
            }
        for name, tensor in row.items():
            torch.testing.assert_close(fitted.tensors[name][client], tensor.detach(), **EXACT)


def test_nobody_with_data_trains_nothing() -> None:
    stack, data = stack_of("mlp"), ragged((0, 0))
    models = stack.initial(1, 2, distinct=True)
    fitted, steps = trained(stack, models, data, SGD)
    assert steps.tolist() == [0, 0]
    assert_same(fitted, models, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", ["momentum", "adam"])
@pytest.mark.parametrize(
    ("name", "executor"),
    [("mlp", "stacked"), ("mlp", "vmap"), ("normed-cnn", "vmap"), ("normed-cnn", "loop"), ("gru", "loop")],
)
def test_cuda_gives_the_numbers_of_the_cpu(name: str, executor: str, settings: str) -> None:
    data = ragged(shape=SHAPES.get(name, (6,)))
    strength = torch.full((data.k,), 0.5)
    dropout = {"dropout": 0.3} if name == "mlp" else {}
    results = []
    for device in ("cpu", "cuda"):
        stack = stack_of(name, executor, device=device, **dropout)
        models, anchor = stack.initial(1, data.k, distinct=True), stack.initial(9, data.k)
        plan = plan_of(data, device=device)
        fitted = fit(
            stack, models, data.to(device), plan, SETTINGS[settings], 0.05, cross_entropy,
            dropout_keys=keys(data.k).to(device), anchor=anchor, strength=strength.to(device),
        )  # fmt: skip
        assert fitted.models.device.type == device
        results.append(fitted.models)
    assert_same(results[0], results[1], rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("executor", ["stacked", "vmap", "loop"])
def test_an_objective_may_know_all_rows(executor: str) -> None:
    """A method's own loss may hold one number for each client, as a balanced softmax does."""
    stack, data = stack_of("mlp", executor), ragged((4, 4, 4))
    theta = stack.initial(0, 3, distinct=True)
    factors = torch.tensor([[0.5], [1.0], [2.0]], dtype=stack.dtype)
    inputs, targets = data.batch(torch.arange(12).view(3, 4))
    weights = torch.full((3, 4), 0.25, dtype=stack.dtype)

    def scaled(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) * factors

    names = theta.layout.parameters
    ours = batch_gradient(stack, theta.tensors, names, inputs, targets, weights, scaled)
    plain = batch_gradient(stack, theta.tensors, names, inputs, targets, weights, cross_entropy)
    for name in names:
        column = factors.view(3, *[1] * (plain[name].ndim - 1))
        torch.testing.assert_close(ours[name], plain[name] * column, rtol=1e-10, atol=1e-12)
