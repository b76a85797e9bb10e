"""fluke: its FedAvg, run one round at a time."""

# ruff: noqa: E402

from __future__ import annotations

import sys
from importlib.metadata import version
from threading import Semaphore, Thread
from types import ModuleType
from typing import Any

from benchmarks.peers.networks import CLASSES
from benchmarks.peers.serving import explained, serve, task

# A wheel of torchvision for another build of torch lacks its compiled operators, and then fails to describe them. fluke
# imports torchvision for data sets that are not used here, so the description may be left out.
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver


class Turns(FederationObserver):
    """Holds a run at the beginning of each round until it is told to go on: `run` cannot be called round by round."""

    def __init__(self) -> None:
        self.go, self.done = Semaphore(0), Semaphore(0)
        self.failure: BaseException | None = None

    def start_round(self, round: int, global_model: Any) -> None:
        self.go.acquire()

    def end_round(self, round: int) -> None:
        self.done.release()

    def run(self, algorithm: FedAVG) -> None:
        """What the thread does."""
        try:
            algorithm.run(n_rounds=1_000_000, eligible_perc=1.0)
        except BaseException as error:
            self.failure = error
            self.done.release()

    def round(self) -> None:
        """One round."""
        self.go.release()
        self.done.acquire()
        if self.failure is not None:
            raise self.failure


def main() -> None:
    given = task()
    work = given.work
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_evaluator(ClassificationEval(eval_every=1_000_000, n_classes=CLASSES))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    clients = [
        FastDataLoader(inputs, targets, num_labels=CLASSES, batch_size=work.batch, shuffle=True)
        for inputs, targets in zip(given.inputs, given.targets, strict=True)
    ]
    data = DummyDataContainer(clients, [None] * work.clients, None, CLASSES)
    algorithm = FedAVG(
        n_clients=work.clients,
        data_splitter=DataSplitter(data),
        hyper_params={
            "client": {
                "batch_size": work.batch, "local_epochs": 1, "loss": "CrossEntropyLoss",
                "optimizer": {
                    "name": "SGD", "lr": work.lr, "momentum": work.momentum, "weight_decay": work.weight_decay
                },
                "scheduler": {"name": "StepLR", "gamma": 1, "step_size": 1},
            },
            "server": {"weighted": True},
            "model": given.module(),
        },
    )  # fmt: skip
    turns = Turns()
    algorithm.set_callbacks(turns)
    Thread(target=turns.run, args=(algorithm,), daemon=True).start()
    serve(turns.round, algorithm.server.model.state_dict, given, version("fluke-fl"))


if __name__ == "__main__":
    explained(main)
