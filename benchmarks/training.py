"""A piece of local training to measure: K clients with random examples, a network, and one epoch of it in one stack."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from coterie.federation.data import ClientData
from coterie.models import Models, Stack, build_model
from coterie.training import BatchPlan, TrainingSettings, cross_entropy, fit
from coterie.training.keys import client_keys

CLASSES = 10
SHAPES = {"mlp": (1, 28, 28), "pgfed-cnn": (3, 32, 32)}


@dataclass(frozen=True)
class Training:
    """``clients`` x ``examples``, ``batch`` at a time; ``run`` is one epoch of all of them in one stack."""

    network: str
    clients: int
    examples: int
    batch: int

    @cached_property
    def data(self) -> ClientData:
        """Random pictures and labels."""
        draw = torch.Generator().manual_seed(0)
        n = self.clients * self.examples
        inputs = torch.randn(n, *SHAPES[self.network], generator=draw)
        targets = torch.randint(0, CLASSES, (n,), generator=draw)
        return ClientData(inputs, targets, torch.arange(self.clients + 1) * self.examples)

    @cached_property
    def stack(self) -> Stack:
        """What runs the network."""
        shape = SHAPES[self.network]
        return Stack(lambda: build_model(self.network, shape, CLASSES), shape)

    @cached_property
    def theta(self) -> Models:
        """Different first weights for every client."""
        return self.stack.initial(0, self.clients, distinct=True)

    def plan(self) -> BatchPlan:
        """The batches of an epoch."""
        counts, starts = self.data.n.numpy(), self.data.offsets[:-1].numpy()
        keys = client_keys(0, [f"client-{i}" for i in range(self.clients)], 1, "batches")
        return BatchPlan(counts, starts, keys, self.batch, epochs=1)

    def run(self) -> None:
        """Train."""
        settings = TrainingSettings(epochs=1, batch_size=self.batch, lr=0.01)
        keys = torch.zeros(self.clients, dtype=torch.int64)
        fit(self.stack, self.theta, self.data, self.plan(), settings, settings.lr, cross_entropy, dropout_keys=keys)
