"""Losses, hits and full gradients against one client after another in plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import EXACT, RAGGED, SHAPES, assert_same, plan_of, ragged, stack_of
from torch import Tensor, nn

from coterie.federation.data import ClientData
from coterie.models import Models, Stack, module_of
from coterie.training import TrainingSettings, absolute_error, cross_entropy, fit, full_gradient, hits, means, measure

ROWS = [("mlp", "stacked"), ("mlp", "vmap"), ("normed-cnn", "vmap"), ("normed-cnn", "loop"), ("gru", "loop")]
STATISTICS = {"loss": cross_entropy, "accuracy": hits}


def prepared(name: str, executor: str) -> tuple[Stack, Models, ClientData]:
    """Models with running statistics of their own and dropout, which evaluation leaves out."""
    stack = stack_of(name, executor, **({"dropout": 0.5} if name == "mlp" else {}))
    data = ragged(shape=SHAPES.get(name, (6,)))
    models = stack.initial(3, data.k, distinct=True)
    settings, keys = TrainingSettings(lr=0.1), torch.arange(data.k)
    return stack, fit(stack, models, data, plan_of(data), settings, 0.1, cross_entropy, dropout_keys=keys).models, data


def plain(stack: Stack, models: Models, data: ClientData, row: int) -> tuple[nn.Module, Tensor, Tensor]:
    inputs, targets = data.client(row)
    module = module_of(stack, models, row).eval()
    return module, module(inputs.double()), targets


@pytest.fixture(params=[None, 40])
def budget(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches as long as can be, and batches of a few examples."""
    if request.param:
        monkeypatch.setattr(measure, "BATCH_BUDGET", request.param)


@pytest.mark.parametrize(("executor", "rows"), [("loop", 1), ("vmap", 3)])
@pytest.mark.parametrize("common", [False, True])
def test_no_layer_is_wider_than_the_budget(
    executor: str, rows: int, common: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Wide(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            outputs = inputs.flatten(1).repeat(1, 10)
            made.append(outputs.shape[0] * outputs.shape[1])
            return outputs

    stack = Stack(lambda: nn.Sequential(Wide(), nn.Linear(60, 3)), (6,), executor=executor)
    assert stack.widest == 60
    data = ragged(counts=(40, 40, 40))
    models = stack.initial(0, 3, distinct=not common)
    monkeypatch.setattr(measure, "BATCH_BUDGET", 720)
    made.clear()
    means(stack, models, data, STATISTICS)
    assert max(made) == 720 // (1 if common else rows)


@pytest.mark.usefixtures("budget")
@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_means_of_every_client(name: str, executor: str) -> None:
    stack, models, data = prepared(name, executor)
    found = means(stack, models, data, STATISTICS)
    assert {statistic: values.dtype for statistic, values in found.items()} == dict.fromkeys(STATISTICS, torch.float64)
    for row, n in enumerate(RAGGED):
        if n == 0:
            assert found["loss"][row].isnan()
            assert found["accuracy"][row].isnan()
            continue
        _, outputs, targets = plain(stack, models, data, row)
        torch.testing.assert_close(found["loss"][row], nn.functional.cross_entropy(outputs, targets), **EXACT)
        assert float(found["accuracy"][row]) == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert not any(tensor.requires_grad for tensor in found.values())


@pytest.mark.usefixtures("budget")
@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_a_common_row_measures_as_its_copies(name: str, executor: str) -> None:
    stack, models, data = prepared(name, executor)
    common = models[1].repeat(data.k)
    copies = common.clone()
    copies.materialise()
    assert common.common
    assert not copies.common
    for part in (data, data.select([4, 1, 3]), data.select([2, 3, 4])):
        one = means(stack, common[list(range(part.k))], part, STATISTICS)
        other = means(stack, copies[list(range(part.k))], part, STATISTICS)
        for statistic in STATISTICS:
            torch.testing.assert_close(one[statistic], other[statistic], **EXACT, equal_nan=True)
        assert one["loss"].isnan().tolist() == (part.n == 0).tolist()


def test_nobody_with_examples() -> None:
    stack = stack_of("mlp")
    data = ragged((0, 0))
    for models in (stack.initial(0, 2), stack.initial(0, 2, distinct=True)):
        assert means(stack, models, data, STATISTICS)["loss"].isnan().all()
        assert float(full_gradient(stack, models, data, cross_entropy).norm().sum()) == 0.0


def test_another_clients_infinity_stays_there() -> None:
    stack, models, data = prepared("mlp", "stacked")

    def first_is_infinite(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.where(targets == 0, torch.inf, 1.0)

    targets = torch.ones_like(data.targets)
    targets[0] = 0  # padding repeats a batch's first example
    values = means(stack, models, replace(data, targets=targets), {"x": first_is_infinite})["x"]
    assert values.tolist() == pytest.approx([torch.inf, 1, 1, torch.nan, 1, 1], nan_ok=True)


@pytest.mark.usefixtures("budget")
@pytest.mark.parametrize(("name", "executor"), [*ROWS, ("cnn", "vmap")])
def test_full_gradient_of_every_client(name: str, executor: str) -> None:
    stack, models, data = prepared(name, executor)
    before = models.clone()
    found = full_gradient(stack, models, data, cross_entropy)
    assert_same(models, before, rtol=0, atol=0)
    for row, n in enumerate(RAGGED):
        if n == 0:
            assert float(found.norm()[row]) == 0.0
            continue
        module, outputs, targets = plain(stack, models, data, row)
        nn.functional.cross_entropy(outputs, targets).backward()
        for parameter, tensor in module.named_parameters():
            assert tensor.grad is not None
            torch.testing.assert_close(found.tensors[parameter][row], tensor.grad, **EXACT)


def test_full_gradient_of_a_common_row_and_with_weights() -> None:
    stack, models, data = prepared("mlp", "stacked")
    common = models[1].repeat(data.k)
    copies = common.clone()
    copies.materialise()
    assert_same(full_gradient(stack, common, data, cross_entropy), full_gradient(stack, copies, data, cross_entropy))

    weights = torch.rand(data.total, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = full_gradient(stack, models, data, cross_entropy, weights)
    for row, n in enumerate(RAGGED):
        if n == 0:
            continue
        module, outputs, targets = plain(stack, models, data, row)
        own = weights[int(data.offsets[row]) : int(data.offsets[row + 1])]
        (nn.functional.cross_entropy(outputs, targets, reduction="none") * own).sum().backward()
        for parameter, tensor in module.named_parameters():
            assert tensor.grad is not None
            torch.testing.assert_close(found.tensors[parameter][row], tensor.grad, **EXACT)


def test_gradient_is_the_slope_of_the_loss() -> None:
    """Finite differences along a random direction."""
    stack, models, data = prepared("mlp", "stacked")
    direction = stack.initial(77, data.k, distinct=True)
    slope = full_gradient(stack, models, data, cross_entropy).dot(direction)
    step = 1e-6

    def loss(at: Models) -> Tensor:
        return means(stack, at, data, {"loss": cross_entropy})["loss"]

    quotient = (loss(models + direction * step) - loss(models - direction * step)) / (2 * step)
    some = data.n > 0
    torch.testing.assert_close(quotient[some], slope[some], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("executor", ["stacked", "vmap", "loop"])
def test_regression_errors(executor: str) -> None:
    draw = torch.Generator().manual_seed(0)
    data = ClientData.from_clients(
        [torch.randn(n, 6, generator=draw) for n in (2, 5)], [torch.randn(n, 3, generator=draw) for n in (2, 5)]
    )
    stack = stack_of("mlp", executor)
    models = stack.initial(0, 2, distinct=True)
    found: Any = means(stack, models, data, {"mae": absolute_error})["mae"]
    for row in range(2):
        _, outputs, targets = plain(stack, models, data, row)
        assert float(found[row]) == pytest.approx((outputs - targets).abs().mean().item(), abs=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_cuda_measures_as_the_cpu(name: str, executor: str) -> None:
    stack, models, data = prepared(name, executor)
    there = stack_of(name, executor, device="cuda", **({"dropout": 0.5} if name == "mlp" else {}))
    moved, far = models.to("cuda"), data.to("cuda")
    for near, away in ((models, moved), (models[1].repeat(data.k), moved[1].repeat(data.k))):
        one, other = means(stack, near, data, STATISTICS), means(there, away, far, STATISTICS)
        for statistic in STATISTICS:
            assert other[statistic].device.type == "cuda"
            torch.testing.assert_close(one[statistic], other[statistic].cpu(), rtol=0, atol=1e-10, equal_nan=True)
        gradient = full_gradient(there, away, far, cross_entropy)
        assert_same(full_gradient(stack, near, data, cross_entropy), gradient, rtol=0, atol=1e-10)
