"""FL-bench, from a user's checkout: its `FedAvgClient` in turn on every client, then a plain mean of the models.

Written after the layout of its repository (`src/client/fedavg.py`) and not tried by us. Its server reads data sets that
were prepared inside the checkout, so the server is left out, to FL-bench's advantage.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import OrderedDict
from functools import partial
from inspect import signature
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.peers.serving import Unsupported, explained, option, serve, task
from benchmarks.peers.work import Task

WANTED = {"model", "optimizer_cls", "lr_scheduler_cls", "args", "dataset", "data_indices", "device", "return_diff"}


class Examples(Dataset):
    """All clients' examples in one data set, as FL-bench has them."""

    def __init__(self, given: Task) -> None:
        self.inputs, self.targets = given.inputs.flatten(0, 1), given.targets.flatten()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def train(self) -> None:
        """No transforms to change."""

    def eval(self) -> None:
        """No transforms to change."""


def settings(batch: int) -> Namespace:
    """The part of FL-bench's configuration that its client reads; it evaluates nothing."""
    never = Namespace(train=False, val=False, test=False, finetune_epoch=0)
    common = Namespace(
        batch_size=batch, local_epoch=1, buffers="global", use_cuda=False, client_side_evaluation=False,
        reset_optimizer_on_global_epoch=True, test=Namespace(client=never, server=never),
    )  # fmt: skip
    return Namespace(common=common)


def main() -> None:
    given = task()
    work, checkout = given.work, Path(option("checkout"))
    if not (checkout / "src" / "client" / "fedavg.py").exists():
        raise Unsupported(f"{checkout} does not look like a checkout of FL-bench: it has no src/client/fedavg.py")
    sys.path.insert(0, str(checkout))
    from src.client.fedavg import FedAvgClient

    if missing := WANTED - set(signature(FedAvgClient.__init__).parameters):
        raise Unsupported(f"this FedAvgClient takes no {', '.join(sorted(missing))}; use a newer FL-bench")
    parts = torch.arange(work.clients * work.examples).view(work.clients, -1).tolist()
    client = FedAvgClient(
        model=given.module(),
        optimizer_cls=partial(torch.optim.SGD, lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay),
        lr_scheduler_cls=None,
        args=settings(work.batch),
        dataset=Examples(given),
        data_indices=[{"train": part, "val": [], "test": []} for part in parts],
        device=torch.device("cpu"),
        return_diff=False,
    )
    model = OrderedDict((name, given.weights[name].clone()) for name, _ in given.module().named_parameters())

    def round() -> None:
        sent = {
            "local_epoch": 1, "optimizer_state": {}, "lr_scheduler_state": {}, "regular_model_params": model,
            "personal_model_params": {},
        }  # fmt: skip
        packages = [client.train({**sent, "client_id": number}) for number in range(work.clients)]
        for name in model:
            model[name] = torch.stack([package["regular_model_params"][name] for package in packages]).mean(0)

    serve(round, lambda: model, given, "checkout")


if __name__ == "__main__":
    explained(main)
