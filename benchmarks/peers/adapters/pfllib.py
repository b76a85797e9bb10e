"""PFLlib, from a user's checkout: its `FedAvg` server and `clientAVG`, without the evaluation.

Written after the layout of its repository (`system/flcore/servers/serveravg.py` and so on) and not tried by us. Its
data are files below `../dataset`, so it runs in a temporary folder with such a neighbour; the checkout stays as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.networks import CLASSES
from benchmarks.peers.serving import Unsupported, explained, option, serve, task
from benchmarks.peers.work import Task


class Arguments:
    """What PFLlib's command line gives; whatever is not named here is 0, as most of its options are by default."""

    def __init__(self, given: Task) -> None:
        work = given.work
        self.model, self.device, self.dataset, self.algorithm = given.module(), "cpu", "peers", "FedAvg"
        self.num_classes, self.num_clients = CLASSES, work.clients
        self.batch_size, self.local_epochs, self.local_learning_rate = work.batch, 1, work.lr
        self.global_rounds, self.join_ratio, self.eval_gap = 1_000_000, 1.0, 1_000_000
        self.time_threthold, self.learning_rate_decay_gamma = 1e9, 1.0
        self.save_folder_name, self.goal = "models", "peers"

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def write_data(given: Task, folder: Path) -> None:
    """Each client's examples where PFLlib looks for them; it wants test data, too."""
    for split, examples in (("train", given.work.examples), ("test", 1)):
        (folder / "dataset" / "peers" / split).mkdir(parents=True)
        for number, (inputs, targets) in enumerate(zip(given.inputs.numpy(), given.targets.numpy(), strict=True)):
            data: Any = {"x": inputs[:examples], "y": targets[:examples]}
            np.savez(folder / "dataset" / "peers" / split / f"{number}.npz", data=np.array(data, dtype=object))


def main() -> None:
    given = task()
    system = Path(option("checkout")) / "system"
    for file in ("flcore/servers/serveravg.py", "flcore/clients/clientavg.py", "utils/data_utils.py"):
        if not (system / file).exists():
            raise Unsupported(f"{system.parent} does not look like a checkout of PFLlib: it has no system/{file}")
    if not given.work.plain:
        raise Unsupported("its clients take a learning rate only, no momentum or weight decay")
    sys.path.insert(0, str(system))
    with tempfile.TemporaryDirectory() as folder:
        write_data(given, Path(folder))
        (Path(folder) / "system").mkdir()
        os.chdir(Path(folder) / "system")
        from flcore.servers.serveravg import FedAvg

        server = FedAvg(Arguments(given), 0)

        def round() -> None:
            server.selected_clients = server.select_clients()
            server.send_models()
            for client in server.selected_clients:
                client.train()
            server.receive_models()
            server.aggregate_parameters()

        serve(round, lambda: server.global_model.state_dict(), given, "checkout")


if __name__ == "__main__":
    explained(main)
