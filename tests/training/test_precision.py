"""Mixed precision: products in bfloat16, which has 8 bits, and everything that is kept in float32."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import ragged
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.models.precision import products_in
from coterie.training import BatchPlan, TrainingSettings, batch_gradient, cross_entropy, fit, full_gradient, means
from coterie.training.keys import client_keys

ULP = 2.0**-8
"""The distance of neighbours in bfloat16, relative to them."""

K, B = 5, 16
SGD = TrainingSettings(epochs=2, batch_size=8, lr=0.1)
SETTINGS = {
    "sgd": replace(SGD, weight_decay=1e-3), "momentum": replace(SGD, momentum=0.9),
    "adam": replace(SGD, optimizer="adam", lr=0.01), "clip": replace(SGD, clip=1.0),
}  # fmt: skip


def smooth_mlp() -> nn.Module:
    """Without kinks, at which rounding may change a slope altogether."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3)
    )


def smooth_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[0][:, -1])
        return out


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (smooth_mlp, (6,)), "cnn": (smooth_cnn, (1, 8, 8)), "gru": (Recurrent, (5, 2)),
}  # fmt: skip
ROWS = [("mlp", "stacked"), ("mlp", "vmap"), ("mlp", "loop"), ("cnn", "vmap"), ("cnn", "loop"), ("gru", "loop")]
IN_TURN = [row for row in ROWS if row != ("cnn", "vmap")]


def stack_of(name: str, executor: str, precision: str = "bf16", **options: Any) -> Stack:
    build, shape = MODELS[name]
    return Stack(build, shape, executor=executor, precision=precision, **options)  # type: ignore[arg-type]


def gradients(stack: Stack, theta: Models, rows: slice = slice(None), objective: Any = cross_entropy) -> Models:
    """Of one batch of B examples of each of the K clients; batch statistics move on in ``theta``."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(K, B, *stack.feature_shape, generator=draw)
    targets, weights = torch.randint(3, (K, B), generator=draw), torch.full((K, B), 1 / B)
    own = {name: tensor[rows] for name, tensor in theta.tensors.items()}
    found = batch_gradient(
        stack, own, theta.layout.parameters, inputs[rows], targets[rows], weights[rows], objective,
        keys=torch.arange(K)[rows],
    )  # fmt: skip
    return Models(replace(theta.layout, buffers=()), found)


def off(ours: Models, theirs: Models) -> Tensor:
    """How far each client's row is off, relative to its length, ``(k,)``."""
    return (ours - theirs).norm() / theirs.norm()


def trained(
    stack: Stack, theta: Models, data: ClientData, settings: TrainingSettings, clients: Sequence[int] | None = None
) -> Models:
    names = [f"client {i}" for i in (range(data.k) if clients is None else clients)]
    counts, starts = data.n.numpy(), data.offsets[:-1].numpy()
    plan = BatchPlan(
        counts, starts, client_keys(0, names, 1, "batches"), settings.batch_size, epochs=settings.epochs, smallest=2
    )
    keys = torch.tensor([int(name.split()[1]) for name in names])
    return fit(stack, theta, data, plan, settings, settings.lr, cross_entropy, dropout_keys=keys).models


def same(ours: Models, theirs: Models) -> bool:
    return all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())


@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_gradients_are_those_of_float32_within_rounding(name: str, executor: str) -> None:
    low, full = stack_of(name, executor), stack_of(name, executor, "full")
    theta = low.initial(3, K, distinct=True)
    ours, theirs = gradients(low, theta.clone()), gradients(full, theta.clone())
    assert all(tensor.dtype == torch.float32 for tensor in ours.tensors.values())
    error = off(ours, theirs)
    assert error.max() < 3 * ULP
    assert error.min() > ULP / 8  # the products were in bfloat16 indeed


def test_executors_agree_within_rounding() -> None:
    theta = stack_of("mlp", "loop").initial(3, K, distinct=True)
    stacked, vmap, loop = (gradients(stack_of("mlp", executor), theta) for executor in ("stacked", "vmap", "loop"))
    assert max(off(stacked, loop).max(), off(vmap, loop).max(), off(stacked, vmap).max()) < 2 * ULP
    theta = stack_of("cnn", "loop").initial(3, K, distinct=True)
    one, other = (gradients(stack_of("cnn", executor), theta.clone()) for executor in ("vmap", "loop"))
    assert off(one, other).max() < 2 * ULP


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(("name", "executor"), IN_TURN)
def test_a_client_alone_gets_the_very_same_model(name: str, executor: str, settings: TrainingSettings) -> None:
    stack, data = stack_of(name, executor), ragged((9, 20, 3, 16), MODELS[name][1])
    theta = stack.initial(3, 4, distinct=True)
    together = trained(stack, theta, data, settings)
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in together.tensors.values())
    for client in (1, 2):
        alone = trained(stack, theta[[client]], data.select([client]), settings, [client])
        assert same(alone, together[[client]])


@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_what_the_others_have_changes_nothing(name: str, executor: str) -> None:
    stack, data = stack_of(name, executor), ragged((9, 20, 3, 16), MODELS[name][1])
    theta, inputs = stack.initial(3, 4, distinct=True), data.inputs.clone()
    inputs[: int(data.offsets[1])] = torch.nan
    inputs[int(data.offsets[2]) :] = 1e30
    one, other = trained(stack, theta, data, SGD), trained(stack, theta, replace(data, inputs=inputs), SGD)
    assert same(one[[1]], other[[1]])
    assert not other[[0]].finite().item()


@pytest.mark.parametrize(("name", "executor"), [("mlp", "stacked"), ("mlp", "vmap"), ("mlp", "loop")])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_too_small_for_bfloat16_are_kept(name: str, executor: str, momentum: float) -> None:
    """Weights are float32: what is small beside the distance of neighbours in bfloat16 is not lost."""
    low, full, data = stack_of(name, executor), stack_of(name, executor, "full"), ragged((40, 40))
    theta, settings = low.initial(3, 2, distinct=True), replace(SGD, epochs=1, lr=1e-4, momentum=momentum)
    change = trained(low, theta, data, settings) - theta
    assert change.norm().max() < ULP / 10 * theta.norm().min()
    assert off(change, trained(full, theta, data, settings) - theta).max() < 4 * ULP


@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_losses_are_computed_in_float32(name: str, executor: str) -> None:
    """Of outputs in float32, also where they come in bfloat16; and those that are reported by no bfloat16 at all."""
    seen: list[torch.dtype] = []

    def objective(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return cross_entropy(outputs, targets)

    low, full, data = stack_of(name, executor), stack_of(name, executor, "full"), ragged((9, 20), MODELS[name][1])
    theta = low.initial(3, K, distinct=True)
    gradients(low, theta, objective=objective)
    assert set(seen) == {torch.float32}
    theta = theta[[0, 1]]
    ours, theirs = (means(stack, theta, data, {"loss": cross_entropy})["loss"] for stack in (low, full))
    assert torch.equal(ours, theirs)
    inputs, _ = data.batch(torch.zeros(2, 1, dtype=torch.int64))
    assert torch.equal(low.features(theta.tensors, inputs), full.features(theta.tensors, inputs))


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_batch_statistics_are_kept_in_float32(executor: str) -> None:
    low, full = stack_of("cnn", executor), stack_of("cnn", executor, "full")
    ours, theirs = low.initial(3, K, distinct=True), low.initial(3, K, distinct=True)
    gradients(low, ours)
    gradients(full, theirs)
    for name in ("1.running_mean", "1.running_var"):
        assert ours.tensors[name].dtype == torch.float32
        torch.testing.assert_close(ours.tensors[name], theirs.tensors[name], rtol=ULP, atol=ULP / 16)


@pytest.mark.parametrize("executor", ["stacked", "vmap", "loop"])
def test_the_gradient_of_a_whole_split(executor: str) -> None:
    low, full, data = stack_of("mlp", executor), stack_of("mlp", executor, "full"), ragged((30, 0, 18))
    theta = low.initial(3, 3, distinct=True)
    ours, theirs = (full_gradient(stack, theta, data, cross_entropy) for stack in (low, full))
    assert off(ours, theirs)[[0, 2]].max() < 4 * ULP
    assert ours.norm()[1] == 0


def test_full_precision_casts_nothing() -> None:
    stack = stack_of("mlp", "stacked", "full")
    assert stack.low is None
    assert isinstance(stack.lowering(), nullcontext)


def test_a_precision_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CoterieError, match=r"dtype is float64: set dtype: float32, or precision: full"):
        stack_of("mlp", "stacked", dtype=torch.float64)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    with pytest.raises(CoterieError, match=r"Tesla T4 does not compute in bfloat16.*set precision: full"):
        products_in("bf16", torch.float32, torch.device("cuda"))
    assert products_in("full", torch.float32, torch.device("cuda")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_cuda_gives_the_gradients_of_the_cpu_within_rounding(name: str, executor: str) -> None:
    near = stack_of(name, executor)
    theta = near.initial(3, K, distinct=True)
    far, moved = stack_of(name, executor, device="cuda"), theta.to("cuda").clone()
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(K, B, *near.feature_shape, generator=draw), torch.randint(3, (K, B), generator=draw)
    found = batch_gradient(
        far, moved.tensors, theta.layout.parameters, inputs.cuda(), targets.cuda(), torch.full((K, B), 1 / B).cuda(),
        cross_entropy, keys=torch.arange(K).cuda(),
    )  # fmt: skip
    ours = Models(replace(theta.layout, buffers=()), {n: tensor.cpu() for n, tensor in found.items()})
    assert off(ours, gradients(near, theta.clone())).max() < 4 * ULP


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_cuda_trains_float32_models(settings: TrainingSettings) -> None:
    stack, data = stack_of("mlp", "stacked", device="cuda"), ragged((9, 20, 3, 16))
    full = stack_of("mlp", "stacked", "full")
    theta, device = full.initial(3, 4, distinct=True), torch.device("cuda")
    plan = BatchPlan(
        data.n.numpy(), data.offsets[:-1].numpy(), client_keys(0, ["a", "b", "c", "d"], 1, "batches"), 8, epochs=2,
        device=device,
    )  # fmt: skip
    keys = torch.arange(4)
    ours = fit(
        stack, theta.to(device), data.to(device), plan, settings, settings.lr, cross_entropy,
        dropout_keys=keys.to(device),
    ).models  # fmt: skip
    plan = BatchPlan(
        data.n.numpy(), data.offsets[:-1].numpy(), client_keys(0, ["a", "b", "c", "d"], 1, "batches"), 8, epochs=2
    )
    theirs = fit(full, theta, data, plan, settings, settings.lr, cross_entropy, dropout_keys=keys).models
    assert ours.dtype == torch.float32
    assert off(ours.to("cpu") - theta, theirs - theta).max() < (0.5 if settings.optimizer == "adam" else 16 * ULP)
