"""The loop without its overheads: one module and one optimiser for all clients, batches cut from the tensors."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.peers.serving import explained, serve, task


def main() -> None:
    given = task()
    work, module = given.work, given.module().train()
    state = module.state_dict()
    model = {name: tensor.clone() for name, tensor in state.items()}

    def round() -> None:
        total = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
        for inputs, targets in zip(given.inputs, given.targets, strict=True):
            with torch.no_grad():
                for name, tensor in state.items():
                    tensor.copy_(model[name])
            optimiser = torch.optim.SGD(
                module.parameters(), work.lr, work.momentum, weight_decay=work.weight_decay, foreach=True
            )
            for batch in torch.randperm(work.examples).split(work.batch):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
                optimiser.step()
            with torch.no_grad():
                for name, tensor in state.items():
                    total[name] += tensor
        for name, tensor in total.items():
            model[name] = tensor / work.clients if tensor.is_floating_point() else tensor // work.clients

    serve(round, lambda: model, given, "")


if __name__ == "__main__":
    explained(main)
