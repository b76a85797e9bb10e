"""The usual loop: each client has a copy of the model, an optimiser and a DataLoader, one client after another."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.serving import explained, serve, task
from benchmarks.peers.work import Work


def train(module: nn.Module, inputs: Tensor, targets: Tensor, work: Work) -> None:
    """One epoch."""
    loader = DataLoader(TensorDataset(inputs, targets), work.batch, shuffle=True)
    optimiser = torch.optim.SGD(module.parameters(), work.lr, work.momentum, weight_decay=work.weight_decay)
    module.train()
    for batch, labels in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch), labels).backward()
        optimiser.step()


@torch.no_grad()
def average(into: nn.Module, modules: list[nn.Module]) -> None:
    """The mean of parameters and buffers; every client has as many examples."""
    for name, tensor in into.state_dict().items():
        total = sum(module.state_dict()[name] for module in modules)
        tensor.copy_(total / len(modules))


def main() -> None:
    given = task()
    model = given.module()
    clients = [copy.deepcopy(model) for _ in range(given.work.clients)]

    def round() -> None:
        for number, client in enumerate(clients):
            client.load_state_dict(model.state_dict())
            train(client, given.inputs[number], given.targets[number], given.work)
        average(model, clients)

    serve(round, model.state_dict, given, "")


if __name__ == "__main__":
    explained(main)
