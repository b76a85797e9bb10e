"""Flower: the simulation of `flwr` on Ray, with the client of its PyTorch quickstart."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.adapters.flower_client import client
from benchmarks.peers.serving import explained, option, serve, task


class Strict(FedAvg):
    """FedAvg that does not go on without a client that failed."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """The mean of all models."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        return super().aggregate_train(server_round, replies)


def main() -> None:
    given = task()
    workers, clients = int(option("workers", "2")), given.work.clients
    server = ServerApp()

    @server.main()
    def serving(grid: Grid, context: Context) -> None:
        strategy = Strict(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        arrays = ArrayRecord(given.weights)

        def round() -> None:
            nonlocal arrays
            arrays = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1).arrays

        explained(lambda: serve(round, lambda: arrays.to_torch_state_dict(), given, version("flwr")))

    run_simulation(
        server_app=server,
        client_app=client(given.path),
        num_supernodes=clients,
        backend_config={
            "init_args": {"num_cpus": workers, "num_gpus": 0, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    explained(main)
