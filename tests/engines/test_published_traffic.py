"""Measured traffic beside the papers' tables: with their networks, a few images and one or two rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.contract import make_algorithm
from coterie.engines import Settings, Simulation, TrainingSettings
from coterie.federation import Federation
from coterie.federation.data import ClientData
from coterie.models import ModelSpec


def traffic(
    algorithm: str, model: str, shape: tuple[int, ...], classes: int, rounds: int = 1, clients: int = 2, **options: Any
) -> dict[str, float]:
    """Floats that cross the wire for each of the clients in ``rounds`` rounds, by kind."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.rand(4, *shape, generator=draw) for _ in range(clients)]
    data = ClientData.from_clients(inputs, [torch.randint(0, classes, (4,), generator=draw) for _ in range(clients)])
    federation = Federation(tuple("abcdefghijklmnopqrstuvwxyz"[:clients]), data, data, data, "classification", classes)
    settings = Settings(
        rounds=rounds,
        evaluate_every=rounds,
        training=TrainingSettings(epochs=1, batch_size=4, lr=0.01),
        buffers="local",
    )
    simulation = Simulation(federation, make_algorithm(algorithm, **options), ModelSpec(model), settings)
    while not simulation.finished:
        simulation.advance()
    table = simulation.ledger.per_client()
    table = table[table.phase != "evaluate"]
    return {kind: rows["bytes"].sum() / 4 / clients for kind, rows in table.groupby("kind")}


@pytest.mark.parametrize(("algorithm", "published"), [("fedavg", 9.54), ("feddwa", 14.31)])
def test_feddwa_table_4(algorithm: str, published: float) -> None:
    """CIFAR-100, MB of 2^20 bytes for each client and round, without running statistics."""
    floats = traffic(algorithm, "feddwa-cnn", (3, 32, 32), 100)["model"]
    assert floats * 4 / 2**20 == pytest.approx(published, abs=0.011)


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "clients", "rounds", "options", "published"),
    [("fedfomo", 6, 2, {"neighbours": 5}, 9.54 / 2 + 28.62), ("l2c", 20, 1, {}, 100.17)],
)
def test_feddwa_table_4_of_methods_that_send_many_models(
    algorithm: str, clients: int, rounds: int, options: dict[str, Any], published: float
) -> None:
    """(1 + M) and (1 + N) models: FedFomo with M = 5 after a first round with nothing to send, L2C with N = 20."""
    floats = traffic(algorithm, "feddwa-cnn", (3, 32, 32), 100, rounds, clients, **options)["model"]
    assert floats * 4 / 2**20 == pytest.approx(published, rel=6e-4)  # 21 times a rounded 4.77


def test_fedora_cost_table() -> None:
    """2 R d floats, 118,282,000 with R = 500, and once p (d_in + C); the slides leave the labels out."""
    rounds, d = 2, 118_282
    assert traffic("fedavg", "mlp", (1, 28, 28), 10, rounds) == {"model": 2 * rounds * d}
    assert traffic("fedora", "mlp", (1, 28, 28), 10, rounds) == {"model": 2 * rounds * d, "summary": 794}


def test_pgfed_is_two_and_a_half_times_fedavg() -> None:
    """Five models a round, three in the first."""
    one, two = (traffic("pgfed", "pgfed-cnn", (3, 32, 32), 10, rounds)["model"] for rounds in (1, 2))
    fedavg = traffic("fedavg", "pgfed-cnn", (3, 32, 32), 10)["model"]
    assert (one, two - one) == (1.5 * fedavg, 2.5 * fedavg)
