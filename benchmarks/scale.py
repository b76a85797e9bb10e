"""Many clients, few at a time: memory and seconds of a run with 100,000 clients of whom 100 take part in a round.

    python benchmarks/scale.py fedavg ditto fedper fedora

Each client of the source `synthetic` has 20 training, 5 validation and 5 test examples of 60 features in 10 classes;
the model is an MLP with 64 hidden units. Every method runs in a process of its own, which prints the memory before the
first round, its peak, the seconds of a round and of an evaluation of all clients, and what the state of the clients
met takes. `--client-memory 0` puts that state on disk.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from coterie.contract import make_algorithm
from coterie.engines import Participation, Settings, Simulation, TrainingSettings
from coterie.federation import build_federation
from coterie.models import ModelSpec

SECTION = {
    "source": "synthetic",
    "examples": 30,
    "partition": {"rule": "natural"},
    "validation": 5,
    "test": 5,
}


def memory(what: str) -> float:
    """``VmRSS``, the resident memory of this process, or ``VmHWM``, its peak, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def measure(name: str, arguments: argparse.Namespace) -> None:
    settings = Settings(
        rounds=arguments.rounds,
        participation=Participation("uniform", clients=arguments.cohort),
        evaluate_every=arguments.rounds,
        training=TrainingSettings(1, 10, lr=0.01),
        client_memory=arguments.client_memory,
        keep_models=False,
    )
    method, _, variant = name.partition(":")
    simulation = Simulation(
        build_federation(SECTION | {"clients": arguments.clients}, seed=0), make_algorithm(method, variant or None),
        ModelSpec("mlp", {"hidden": [arguments.hidden]}), settings,
    )  # fmt: skip
    before, seconds = memory("VmRSS"), list[float]()
    for round in range(arguments.rounds):
        begin = time.perf_counter()
        report = simulation.advance()
        seconds.append(time.perf_counter() - begin - report.seconds.get("evaluate", 0.0))
        if (round + 1) % max(1, arguments.rounds // 5) == 0:
            print(f"{name:15s} round {round + 1:4d}  {memory('VmRSS'):8.0f} MB", flush=True)
    met, row = int(simulation.welcomed.sum()), sum(simulation.server.initial_model().bytes_per_row()) / 1e6
    print(
        f"{name:15s} before {before:6.0f} MB, peak {memory('VmHWM'):6.0f} MB; one state of the {met} clients met "
        f"{met * row:6.0f} MB, of all {simulation.K * row:6.0f} MB; round {statistics.median(seconds):.2f} s "
        f"(last {seconds[-1]:.2f} s), evaluation {report.seconds['evaluate']:.1f} s"
    )
    for note, value in report.notes.items():
        print(f"{name:15s} {note} {value:.2e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=["fedavg", "ditto", "fedper", "fedora", "fedora:paper"])
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--client-memory", type=float, default=None)
    arguments = parser.parse_args()
    if len(arguments.methods) == 1:
        measure(arguments.methods[0], arguments)
        return
    options = [f"--{key.replace('_', '-')}={value}" for key, value in vars(arguments).items() if key != "methods"]
    options = [option for option in options if not option.endswith("=None")]
    for name in arguments.methods:
        subprocess.run([sys.executable, __file__, name, *options], check=True)


if __name__ == "__main__":
    main()
