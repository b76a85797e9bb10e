"""What is timed: how many clients train what on how much, and the file that all contestants read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.networks import CLASSES, SHAPES, network, training_flops


@dataclass(frozen=True)
class Work:
    """One round of FedAvg: every client trains one epoch of SGD on its own examples; the models are averaged."""

    name: str
    network: str
    clients: int
    examples: int
    batch: int
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether SGD has neither momentum nor weight decay."""
        return self.momentum == self.weight_decay == 0

    @property
    def flops(self) -> int:
        """Floating-point operations of one round."""
        return self.clients * self.examples * training_flops(self.network)

    def __str__(self) -> str:
        sgd = "SGD" if self.plain else f"SGD, momentum {self.momentum:g}, weight decay {self.weight_decay:g}"
        return f"{self.name}: {self.network}, {self.clients} x {self.examples} examples, batch {self.batch}, {sgd}"


HEAVY = {"momentum": 0.9, "weight_decay": 5e-4}
WORKS = {
    work.name: work
    for work in (
        Work("mlp-10", "mlp", 20, 120, 10),
        Work("mlp-64", "mlp", 20, 120, 64),
        Work("mlp-10-momentum", "mlp", 20, 120, 10, **HEAVY),
        Work("mlp-64-momentum", "mlp", 20, 120, 64, **HEAVY),
        Work("mlp-10-k100", "mlp", 100, 120, 10),
        Work("mlp-10-k1000", "mlp", 1000, 20, 10),
        Work("cnn-10", "pgfed-cnn", 20, 60, 10),
        Work("cnn-32", "pgfed-cnn", 20, 60, 32),
        Work("bn-10", "feddwa-cnn", 20, 60, 10),
        Work("bn-32", "feddwa-cnn", 20, 60, 32),
    )
}


@dataclass(frozen=True)
class Task:
    """A piece of work with its data: ``inputs: (K, n, *shape)``, ``targets: (K, n)``, and the first weights by name."""

    work: Work
    inputs: Tensor
    targets: Tensor
    weights: dict[str, Tensor]
    path: Path

    def module(self) -> nn.Module:
        """The network with the first weights."""
        module = network(self.work.network)
        module.load_state_dict(self.weights)
        return module

    def loss(self, weights: dict[str, Tensor]) -> float:
        """Mean cross-entropy of a model on (at most 2,000 of) all clients' examples."""
        module = network(self.work.network).eval()
        module.load_state_dict(weights)
        some = torch.arange(0, self.targets.numel(), max(1, self.targets.numel() // 2000))
        with torch.no_grad():
            outputs = module(self.inputs.flatten(0, 1)[some])
            return float(nn.functional.cross_entropy(outputs, self.targets.flatten()[some]))


def write(work: Work, path: Path, seed: int = 0) -> None:
    """Draw examples around one random picture a class, and first weights, into an ``.npz``."""
    draw = np.random.default_rng(seed)
    shape = SHAPES[work.network]
    pictures = draw.standard_normal((CLASSES, *shape), dtype=np.float32)
    targets = draw.integers(0, CLASSES, (work.clients, work.examples))
    inputs = 0.2 * pictures[targets] + draw.standard_normal((*targets.shape, *shape), dtype=np.float32)
    torch.manual_seed(seed)
    weights = {f"weights/{name}": tensor.numpy() for name, tensor in network(work.network).state_dict().items()}
    np.savez(path, inputs=inputs, targets=targets, work=json.dumps(asdict(work)), **weights)


def read(path: Path) -> Task:
    """What ``write`` wrote."""
    with np.load(path) as file:
        weights = {name.removeprefix("weights/"): file[name] for name in file.files if name.startswith("weights/")}
        return Task(
            Work(**json.loads(str(file["work"]))),
            torch.from_numpy(file["inputs"]),
            torch.from_numpy(file["targets"]),
            {name: torch.from_numpy(array) for name, array in weights.items()},
            path,
        )
