"""Seconds of an exchange with real sites on this machine: a question to all of them and all their answers.

One federation at a time, as real processes with TLS and keys (see `coterie deploy demo`); four sites train one epoch
on 32 digits, so that almost all of the time is Flower's. A round of FedAvg is one exchange, which also brings the
evaluation of the round before. The first round is not counted. LOCAL trains first, as in every experiment.

    python -m benchmarks.exchange [--sites 4] [--rounds 8] [--skip 1] [--parameters 120k,1.2M] [--modes default,warm]

With ``--method federico`` the clients send models to one another, by way of the server.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from coterie.config import parse_config
from coterie.deploy.processes import Deployment, free_ports
from coterie.deploy.writing import Plan, write_federation
from coterie.federation import build_federation

WIDTHS = {"12k": 90, "120k": 310, "1.2M": 1060, "12M": 3420}
"""Width of both hidden layers of an MLP for digits, by about how many parameters it then has."""


def experiment(parameters: str, sites: int, rounds: int, method: str) -> dict[str, Any]:
    return {
        "name": "exchange",
        "federation": {
            "source": "digits",
            "partition": {"rule": "iid", "clients": sites},
            "train": 32,
            "validation": 8,
        },
        "model": {"name": "mlp", "hidden": [WIDTHS[parameters]] * 2},
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.01},
        "algorithms": [method],
        "rounds": rounds,
        "evaluate_every": 1,
        "report": "last",
    }


def measured(parameters: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One federation from its start to its end."""
    config = parse_config(experiment(parameters, options.sites, options.rounds, options.method))
    federation = build_federation(config.federation, seed=0)
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name) / "federation", Path(name) / "run"
        port = free_ports(options.sites + 1)
        write_federation(folder, Plan(config, federation.names, "127.0.0.1", port, None, federation, None))
        with Deployment(folder) as deployment:
            deployment.start_server()
            for site in deployment.sites:
                deployment.register([site])
                deployment.start_site(site, warm=mode == "warm")
            deployment.wait_online()
            status = deployment.run(output, timeout=1800)
            if status != "finished:completed":
                raise SystemExit(f"the run is {status}:\n{deployment.tail('run')}")
        timings, history = pd.read_parquet(output / "timings.parquet"), pd.read_parquet(output / "history.parquet")
    own = timings[(timings["algorithm"] == options.method) & (timings["phase"] == "train")].sort_values("round")
    seconds = own["seconds"].tolist()[options.skip :]
    traffic = history[(history["algorithm"] == options.method) & history["metric"].str.startswith("bytes")]
    return {
        "parameters": parameters, "mode": mode, "median": median(seconds), "least": min(seconds), "most": max(seconds),
        "megabytes": traffic["value"].sum() / options.rounds / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--skip", type=int, default=1, help="first rounds that are not counted")
    parser.add_argument("--parameters", default="120k,1.2M", help=f"of {', '.join(WIDTHS)}")
    parser.add_argument("--modes", default="default,warm")
    parser.add_argument("--method", default="fedavg")
    options = parser.parse_args()
    print(f"{options.sites} sites, {options.method}, {options.rounds - options.skip} rounds of each")
    print("| parameters | client apps | seconds of a round, median | least | most | MB of a round |")
    print("|---|---|---|---|---|---|")
    for parameters in options.parameters.split(","):
        for mode in options.modes.split(","):
            row = measured(parameters, mode, options)
            figures = " | ".join(f"{row[key]:.1f}" for key in ("median", "least", "most", "megabytes"))
            print(f"| {row['parameters']} | {row['mode']} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
