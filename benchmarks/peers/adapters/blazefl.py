"""BlazeFL: its FedAvg, one client after another or with its pool of threads."""

from __future__ import annotations

from importlib.metadata import version

import torch
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.peers.serving import Unsupported, explained, option, serve, task
from benchmarks.peers.work import Task


class Networks:
    """A ``ModelSelector``: the task's network."""

    def __init__(self, given: Task) -> None:
        self.given = given

    def select_model(self, model_name: str) -> torch.nn.Module:
        return self.given.module()


class Parts:
    """A ``PartitionedDataset``: each client's training data."""

    def __init__(self, given: Task) -> None:
        self.given = given

    def get_dataset(self, type_: str, cid: int | None) -> Dataset:
        return TensorDataset(self.given.inputs[cid], self.given.targets[cid])

    def set_dataset(self, type_: str, cid: int | None, dataset: Dataset) -> None:
        """The data do not change."""

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int | None = None, generator: torch.Generator | None = None
    ) -> DataLoader:
        return DataLoader(self.get_dataset(type_, cid), batch_size, shuffle=True, generator=generator)


def main() -> None:
    given = task()
    work, workers = given.work, int(option("workers", "1"))
    if not work.plain:
        raise Unsupported("its FedAvg takes a learning rate only, no momentum or weight decay")
    common = {
        "model_selector": Networks(given), "model_name": work.network, "dataset": Parts(given), "device": "cpu",
        "num_clients": work.clients, "batch_size": work.batch, "seed": 0,
    }  # fmt: skip
    handler = FedAvgBaseServerHandler(global_round=1_000_000, sample_ratio=1.0, **common)
    if workers == 1:
        trainer = FedAvgBaseClientTrainer(epochs=1, lr=work.lr, **common)
    else:
        trainer = FedAvgThreadPoolClientTrainer(epochs=1, lr=work.lr, num_parallels=workers, **common)

    def round() -> None:
        sampled = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), sampled)
        for package in trainer.uplink_package():
            handler.load(package)

    serve(round, handler.model.state_dict, given, version("blazefl"))


if __name__ == "__main__":
    explained(main)
