"""Training as anybody would write it: one client after another, with ``torch.optim``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.federation.data import ClientData
from coterie.models import Models, Stack, build_model, module_of
from coterie.training import BatchPlan, TrainingSettings
from coterie.training.keys import client_keys

B = 4  # batch size of most tests
RAGGED = (B - 1, 3 * B + 2, 1, 0, B + 1, B)  # with a client that has nothing to train on
EXACT = {"rtol": 0.0, "atol": 1e-10}


class Scaled(nn.Module):
    """Tied weights and a parameter that is a mere number, which no layer of torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.inner = nn.Linear(6, 6)
        self.again = self.inner
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.scale * torch.tanh(self.again(torch.tanh(self.inner(x.flatten(1))))))


def repeated_activation(dropout: float = 0.0) -> nn.Module:
    """One activation and one dropout object in two places each, as users write it."""
    relu, drop = nn.ReLU(inplace=True), nn.Dropout(dropout)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 8), relu, drop, nn.Linear(8, 8), nn.LeakyReLU(0.3), relu, drop, nn.Linear(8, 3)
    )  # fmt: skip


def tied_sequence() -> nn.Module:
    """One linear layer in two places of a sequence."""
    linear = nn.Linear(6, 6)
    return nn.Sequential(nn.Flatten(), linear, nn.Tanh(), linear, nn.Tanh(), nn.Linear(6, 3))


def normed_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Centred(nn.Module):
    """A running mean that a forward pass replaces by another tensor, read before and after, and a count of passes."""

    mean: Tensor
    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.flatten(1)))
        centred = hidden * (1.0 - self.mean)
        if self.training:
            self.mean = 0.8 * self.mean + 0.2 * hidden.mean(0).detach()
            self.passes = self.passes + 1
        return self.last(centred * (1.0 + self.mean))


class Mixing(nn.Module):
    """A layer of one's own that takes the mean of a batch from its examples, in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.flatten(1)))
        return self.last(hidden - hidden.mean(0) if self.training else hidden)


class StepsFirst(nn.Module):
    """Three steps of two numbers, with dropout where the steps are the first axis and the examples the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(2, 5), nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x.view(-1, 3, 2).transpose(0, 1))).tanh().mean(0))


class Spare(nn.Module):
    """A layer that no forward pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.spare, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))


class Routed(nn.Module):
    """One of two layers, by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.one(x) if float(x.sum()) > 0 else self.two(x)))


def frozen_mlp() -> nn.Module:
    """A first layer as it was trained elsewhere, under two of one's own."""
    first = nn.Linear(6, 5).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


SHAPES: dict[str, tuple[int, ...]] = {"cnn": (1, 8, 8), "normed-cnn": (1, 8, 8), "gru": (5, 2)}
OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [7, 5]}, "cnn": {"channels": [3], "hidden": 6},
    "normed-cnn": {"channels": [3], "hidden": 6, "batch_norm": True}, "gru": {"hidden": 4},
}  # fmt: skip
OWN = {
    "scaled": Scaled, "normed-mlp": normed_mlp, "tied-sequence": tied_sequence,
    "repeated-activation": repeated_activation, "frozen-mlp": frozen_mlp,
    "centred": Centred,
    "spare": Spare, "routed": Routed, "mixing": Mixing, "steps-first": StepsFirst,
}  # fmt: skip


def stack_of(name: str, executor: str = "auto", *, device: str = "cpu", **options: Any) -> Stack:
    """A float64 stack of a small model by name."""
    shape = SHAPES.get(name, (6,))

    def build() -> nn.Module:
        if name in OWN:
            return OWN[name](**options)
        return build_model(name.removeprefix("normed-"), shape, 3, **{**OPTIONS[name], **options})

    return Stack(build, shape, executor=executor, dtype=torch.float64, device=device)  # type: ignore[arg-type]


def ragged(counts: Sequence[int] = RAGGED, shape: Sequence[int] = (6,), classes: int = 3, seed: int = 0) -> ClientData:
    """Random clients with these numbers of examples."""
    draw = torch.Generator().manual_seed(seed)
    return ClientData.from_clients(
        [torch.randn(n, *shape, generator=draw) for n in counts],
        [torch.randint(classes, (n,), generator=draw) for n in counts],
    )


def plan_of(data: ClientData, batch_size: int = B, **options: Any) -> BatchPlan:
    """The batches of clients called ``client 0``, ``client 1``, and so on, in float64."""
    if "steps" not in options:
        options.setdefault("epochs", 3)
    names = [f"client {i}" for i in range(data.k)]
    keys = options.pop("keys", client_keys(0, names, 1, "batches:train"))
    return BatchPlan(data.n.numpy(), data.offsets[:-1].numpy(), keys, batch_size, dtype=torch.float64, **options)


def batches_of(plan: BatchPlan, client: int) -> list[Tensor]:
    """The positions of each batch of one client, padding left out."""
    row = int((plan.order == client).nonzero()[0][0])
    found = []
    for step in range(int(plan.steps[client])):
        batch = plan.batch(step)
        found.append(batch.positions[row, : int(batch.sizes[row])])
    return found


def plain_fit(
    stack: Stack,
    models: Models,
    data: ClientData,
    plan: BatchPlan,
    settings: TrainingSettings,
    *,
    anchor: Models | None = None,
    strength: Tensor | None = None,
    prox_place: str = "gradient",
    only: str = "all",
) -> list[dict[str, Tensor]]:
    """The state of every client's module after training it alone."""
    states = []
    for client in range(data.k):
        module = module_of(stack, models, client).train()
        pulled = None if anchor is None else module_of(stack, anchor, client)
        pull = 0.0 if strength is None else float(strength[client])
        train_alone(
            module, batches_of(plan, client), data, settings, models.layout.part(only), pulled, pull, prox_place
        )
        states.append(module.state_dict())
    return states


def train_alone(
    module: nn.Module,
    batches: list[Tensor],
    data: ClientData,
    settings: TrainingSettings,
    names: Sequence[str],
    anchor: nn.Module | None,
    strength: float,
    prox_place: str,
) -> None:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in names)
    pairs = [
        (p, torch.zeros_like(p) if anchor is None else anchor.get_parameter(name).detach())
        for name, p in module.named_parameters()
        if p.requires_grad
    ]
    own = [parameter for parameter, _ in pairs]
    optimiser = torch_optimiser(own, settings)
    for positions in batches:
        inputs, targets = data.batch(positions)
        loss = nn.functional.cross_entropy(module(inputs.double()), targets)
        if prox_place == "gradient" and strength:
            loss = loss + 0.5 * strength * sum((p - a).square().sum() for p, a in pairs)
        optimiser.zero_grad()
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(own, settings.clip)
        before = [parameter.detach().clone() for parameter in own]
        optimiser.step()
        if prox_place != "gradient":
            with torch.no_grad():
                for (parameter, target), old in zip(pairs, before, strict=True):
                    parameter -= settings.lr * strength * (old - target)


def torch_optimiser(parameters: list[nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )  # fmt: skip


def assert_rows(models: Models, states: Sequence[dict[str, Tensor]], **tolerance: float) -> None:
    """Every parameter and buffer of every row is that of the plain module."""
    for row, state in enumerate(states):
        for name, tensor in models.tensors.items():
            torch.testing.assert_close(tensor[row].cpu(), state[name], **(tolerance or EXACT), msg=f"{name}, row {row}")


def assert_same(one: Models, other: Models, **tolerance: float) -> None:
    """Two stacks hold the same numbers."""
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(tensor.cpu(), other.tensors[name].cpu(), **(tolerance or EXACT))
