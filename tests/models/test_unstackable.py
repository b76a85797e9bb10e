"""Modules that cannot be batched over clients run one after the other, and the layer that is the reason is named."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.models import Models, Stack, build_model, module_of
from coterie.models.factory import model
from coterie.training import BatchPlan, TrainingSettings, fit
from coterie.training.losses import cross_entropy


class Around(nn.Module):
    """Two linear layers around one of a kind."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 6), inner, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (ctx.saved_tensors[0] > 0)


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Clamp.apply(x)


class Depends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.sum() > 0 else x


class Chosen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0].abs() >= 0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Sequence(nn.Module):
    """Steps of two numbers through a layer of sequences."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.steps, self.last = nn.Linear(2, 8), build(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.steps(self.first(x.view(-1, 2, 2)))
        return self.last((out[0] if isinstance(out, tuple) else out).mean(1))


def attention(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)


def trained(stack: Stack) -> Models:
    """Three steps of two clients of 5 and 7 examples."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, 4, generator=draw, dtype=torch.float64) for n in (5, 7)]
    data = ClientData.from_clients(inputs, [torch.randint(3, (n,), generator=draw) for n in (5, 7)])
    plan = BatchPlan(
        data.n.numpy(), data.offsets[:-1].numpy(), np.arange(2, dtype=np.uint64), 4, steps=3, dtype=torch.float64
    )
    settings = TrainingSettings(batch_size=4, lr=0.5)
    return fit(
        stack, stack.initial(0, 2), data, plan, settings, 0.5, cross_entropy, dropout_keys=torch.arange(2)
    ).models  # fmt: skip


def plainly(build: Callable[[], nn.Module]) -> Stack:
    return Stack(build, (4,), executor="loop", dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    ("build", "executor", "reason"),
    [
        (
            lambda: Sequence(lambda: nn.LSTM(8, 8, batch_first=True)),
            "loop",
            r"no batching rule: layer 'steps' \(LSTM\)",
        ),
        (lambda: Around(Custom()), "loop", r"layer 'inner' \(Custom\) cannot be batched over clients"),
        (
            lambda: Around(Depends()),
            "loop",
            r"layer 'inner' \(Depends\) cannot be batched over clients: .*control flow",
        ),
        (lambda: Around(Chosen()), "loop", r"layer 'inner' \(Chosen\) cannot be batched over clients"),
        (lambda: Sequence(lambda: attention(0.0)), "vmap", None),
        (Tied, "vmap", None),
    ],
)
def test_the_loop_stands_in_and_the_layer_is_named(
    build: Callable[[], nn.Module], executor: str, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.models")
    stack = Stack(build, (4,), dtype=torch.float64)
    assert stack.executor == executor
    if reason is None:
        assert stack.in_turn is None
        assert not caplog.messages
    else:
        assert stack.in_turn is not None
        assert re.search(reason, stack.in_turn)
        assert stack.in_turn in caplog.text
    found, expected = trained(stack), trained(plainly(build))
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], tensor, rtol=1e-8, atol=1e-10, msg=name)


def test_tied_weights_stay_tied() -> None:
    stack = Stack(Tied, (4,), dtype=torch.float64)
    models = trained(stack)
    assert "second.weight" not in models.tensors
    module = module_of(stack, models, 1)
    assert module.first.weight is module.second.weight
    assert torch.equal(module.first.weight, models.tensors["first.weight"][1])


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (lambda: Sequence(lambda: attention(0.1)), r"layer 'steps.self_attn' \(MultiheadAttention\)"),
        (lambda: Sequence(lambda: nn.GRU(8, 8, 2, dropout=0.1, batch_first=True)), r"layer 'steps' \(GRU\)"),
        (lambda: Around(nn.RReLU()), r"layer 'inner' \(RReLU\)"),
    ],
)
def test_a_layer_with_random_numbers_of_its_own_is_named(build: Callable[[], nn.Module], layer: str) -> None:
    with pytest.raises(CoterieError, match=f"{layer}, so that runs could not be repeated.*dropout=0 in attention"):
        Stack(build, (4,))


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)), r"layer '1' \(LayerNorm\)"),
        (lambda: Around(nn.ReLU()), "the forward pass of Around itself"),
    ],
)
def test_the_stacked_executor_names_what_it_cannot(build: Callable[[], nn.Module], layer: str) -> None:
    with pytest.raises(CoterieError, match=f"executor 'stacked' cannot run .* because of {layer}"):
        Stack(build, (4,), executor="stacked")


def test_layers_that_find_their_widths_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.models import factory

    monkeypatch.setattr(factory, "_FACTORIES", dict(factory._FACTORIES))

    @model("lazy")
    def lazy(feature_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(classes))

    built = build_model("lazy", (4,), 3)
    assert built.training
    assert [tuple(p.shape) for p in built.parameters()] == [(5, 4), (5,), (5,), (5,), (3, 5), (3,)]
    stack = Stack(lambda: build_model("lazy", (4,), 3), (4,))
    one, again, other = (stack.initial(seed).tensors["0.weight"] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
