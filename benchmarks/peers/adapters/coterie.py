"""Coterie: FedAvg in its simulator."""

from __future__ import annotations

import torch

import coterie
from benchmarks.peers.networks import CLASSES
from benchmarks.peers.serving import explained, option, serve, task
from coterie.engines import Settings, Simulation, TrainingSettings
from coterie.models import ModelSpec, build_model

ROUNDS = 1_000_000  # an evaluation belongs to the last round only, which is never reached


def network(feature_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Coterie's own network of that name, with the first weights of the task."""
    given = task()
    module = build_model(given.work.network, feature_shape, classes)
    module.load_state_dict(given.weights)
    return module


def main() -> None:
    given = task()
    work = given.work
    data = coterie.ClientData.from_clients(list(given.inputs), list(given.targets))
    names = tuple(f"client-{number:04d}" for number in range(work.clients))
    federation = coterie.Federation(names, data, data, data, "classification", CLASSES)
    training = TrainingSettings(
        epochs=1, batch_size=work.batch, lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay
    )
    settings = Settings(
        rounds=ROUNDS, evaluate_every=ROUNDS, training=training, threads=int(option("threads", "1")), keep_best="last"
    )
    model = ModelSpec("benchmarks.peers.adapters.coterie:network")
    simulation = Simulation(federation, coterie.make_algorithm("fedavg"), model, settings)

    def round() -> None:
        report = simulation.advance()
        if report.failures:
            raise RuntimeError(str(report.failures[0]))

    def weights() -> dict[str, torch.Tensor]:
        return {name: tensor[0] for name, tensor in simulation.server.w.tensors.items()}

    how = ", ".join(str(simulation.resolved[key]) for key in ("executor", "chunk", "threads"))
    serve(round, weights, given, f"{coterie.__version__} ({how})")


if __name__ == "__main__":
    explained(main)
