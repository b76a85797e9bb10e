"""LOCAL and FedAvg on rotated MNIST in plain PyTorch, without Coterie's training: how far do draws alone move a figure?

    python benchmarks/plain_rotated_mnist.py local --rounds 200
    python benchmarks/plain_rotated_mnist.py fedavg
    python benchmarks/plain_rotated_mnist.py fedavg --coterie            # the preset's data and initial weights instead

The protocol of FEDORA's table 1: 36 clients, 10 degrees apart, 128 training and 64 validation images each from one
permutation of the training set, 277 test images, images in [0, 1] turned to the nearest pixel, an MLP 784-128-128-10, 5
epochs of batches of 64, SGD (0.005, momentum 0.9, weight decay 5e-5) begun anew in each round. Reported is the best
round on validation data, of every tenth. The files of MNIST lie in ``$COTERIE_DATA/mnist`` or in ``--data-dir``/mnist.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.experiment import read_config
from coterie.experiment.experiment import Experiment
from coterie.federation.datasets.idx import read_idx

CLIENTS, TRAIN, VALIDATION, TEST, BATCH, EPOCHS = 36, 128, 64, 277, 64, 5


class Part(NamedTuple):
    """Some examples of one client: ``x: (n, 784)``, ``y: (n,)``."""

    x: Tensor
    y: Tensor


class Client(NamedTuple):
    """What one client has."""

    train: Part
    validation: Part
    test: Part


def read(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Images ``(n, 28, 28)`` from 0 to 1 and labels ``(n,)`` of the official files."""
    images = read_idx(folder / f"{name}-images-idx3-ubyte.gz", 3)
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz", 1)
    return torch.from_numpy(images / np.float32(255)), torch.from_numpy(labels.astype(np.int64))


def turned(images: Tensor, degrees: float) -> Tensor:
    """Flat images ``(n, 784)``, turned to the nearest pixel."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    grid = functional.affine_grid(matrix, [len(images), 1, 28, 28], align_corners=False)
    return functional.grid_sample(images[:, None], grid, mode="nearest", align_corners=False).flatten(1)


def drawn(folder: Path) -> list[Client]:
    """The clients, by torch's own random numbers."""
    (images, labels), (tests, answers) = read(folder, "train"), read(folder, "t10k")
    order, test_order = torch.randperm(60_000), torch.randperm(10_000)

    def part(x: Tensor, y: Tensor, rows: Tensor, client: int, count: int) -> Part:
        own = rows[client * count : (client + 1) * count]
        return Part(turned(x[own], 360 * client / CLIENTS), y[own])

    return [
        Client(
            part(images, labels, order[:50_000], k, TRAIN),
            part(images, labels, order[50_000:], k, VALIDATION),
            part(tests, answers, test_order, k, TEST),
        )
        for k in range(CLIENTS)
    ]


def of_coterie(folder: Path, seed: int) -> tuple[list[Client], list[Tensor]]:
    """Clients and initial weights of the preset."""
    experiment = Experiment(read_config("fedora/rotated-mnist", [f"seeds=[{seed}]"]), data_dir=folder.parent)
    federation = experiment.check()

    def parts(split: str) -> list[Part]:
        data = getattr(federation, split)
        found = []
        for begin, end in zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True):
            x, y = data.batch(torch.arange(begin, end)[None])
            found.append(Part(x[0].flatten(1).float(), y[0]))
        return found

    models = experiment.engine(next(iter(experiment.plan))).report_models()
    weights = [tensor[0].clone() for tensor in models.tensors.values()]
    return [Client(*each) for each in zip(*map(parts, ("train", "validation", "test")), strict=True)], weights


def accuracy(network: nn.Module, part: Part) -> float:
    """Share of right predictions."""
    with torch.no_grad():
        return float((network(part.x).argmax(1) == part.y).float().mean())


def show(network: nn.Module, weights: list[Tensor]) -> None:
    """Put ``weights`` into the network."""
    with torch.no_grad():
        for parameter, weight in zip(network.parameters(), weights, strict=True):
            parameter.copy_(weight)


def trained(network: nn.Module, part: Part) -> list[Tensor]:
    """The weights after the epochs of one round."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.005, momentum=0.9, weight_decay=5e-5)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(part.y)).split(BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(network(part.x[rows]), part.y[rows]).backward()
            optimiser.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


def run(options: argparse.Namespace, seed: int) -> tuple[float, int, float]:
    """Test accuracy of the best round on validation data, that round, and test accuracy after the last one."""
    torch.manual_seed(seed)
    clients = drawn(options.data_dir / "mnist")
    network = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    initial = [parameter.detach().clone() for parameter in network.parameters()]
    if options.coterie:
        clients, initial = of_coterie(options.data_dir / "mnist", seed)
    models, best, last = [initial] * CLIENTS, (-1.0, 0.0, 0), 0.0
    for number in range(1, options.rounds + 1):
        for k, client in enumerate(clients):
            show(network, models[k])
            models[k] = trained(network, client.train)
        if options.method == "fedavg":
            models = [[torch.stack(each).mean(0) for each in zip(*models, strict=True)]] * CLIENTS
        if number % 10 == 0:
            found = []
            for k, client in enumerate(clients):
                show(network, models[k])
                found.append((accuracy(network, client.validation), accuracy(network, client.test)))
            validation, last = np.mean(found, axis=0).tolist()
            best = max(best, (validation, last, number), key=lambda each: each[0])
    return best[1], best[2], last


def main() -> None:
    """One line a seed, then the mean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=["local", "fedavg"])
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--coterie", action="store_true", help="the data and initial weights of the preset")
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("COTERIE_DATA", "data")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for seed in options.seeds:
        begin = time.perf_counter()
        result, number, last = run(options, seed)
        found.append(result)
        told = f"{options.method} seed {seed}: {result:.4f} in round {number}, {last:.4f} in the last"
        print(f"{told} ({time.perf_counter() - begin:.0f} s)", flush=True)
    print(f"mean {np.mean(found):.4f}, standard deviation {np.std(found):.4f}")


if __name__ == "__main__":
    main()
