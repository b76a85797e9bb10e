"""What a round of each method costs, as a multiple of FedAvg's: a method that trains n models may cost n of it.

    python benchmarks/methods.py

FEDORA's MLP, batch 64, 5 epochs, momentum with Nesterov's rule, so that no method's step is folded into the backward
pass; no evaluation. All methods run in one process, one round each in turns; medians are printed. *Allowed* is the
number of local trainings that a method does, and 15 % for everything else.

`--folded` trains with plain SGD, whose step is folded where a method leaves the local training to the framework: what
a method of that kind gains by it. `--rounds 100 --memory` follows the resident memory instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

from coterie.contract import make_algorithm
from coterie.engines import Settings, Simulation, TrainingSettings
from coterie.federation import Federation
from coterie.federation.data import ClientData
from coterie.models import ModelSpec

TRAININGS = {"fedavg": 1, "ditto": 2, "fedamp": 1, "fedora": 1, "apfl": 2}


def federation(clients: int, n: int) -> Federation:
    def split(count: int, seed: int) -> ClientData:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (clients * count, 1, 28, 28), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, 10, (clients * count,), generator=generator)
        return ClientData(images, labels, torch.arange(clients + 1) * count, scale=1 / 255)

    names = tuple(f"client-{i:04d}" for i in range(clients))
    return Federation(names, split(n, 0), split(16, 1), split(16, 2), "classification", 10)


def resident() -> float:
    """This process's memory in MB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(TRAININGS))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folded", action="store_true")
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    momentum = 0.0 if arguments.folded or arguments.memory else 0.9
    epochs = 1 if arguments.memory else 5
    training = TrainingSettings(epochs, 64, lr=0.01, momentum=momentum, nesterov=momentum > 0)
    data = federation(arguments.clients, arguments.examples)
    settings = Settings(
        rounds=arguments.rounds + 2, evaluate_every=10**6, keep_best="last", training=training,
        threads=arguments.threads,
    )  # fmt: skip
    runs = {}
    for name in arguments.methods:
        runs[name] = Simulation(data, make_algorithm(name), ModelSpec("mlp"), settings)
        runs[name].initial_report()
    if arguments.memory:
        for name, run in runs.items():
            seen = [resident() for _ in range(arguments.rounds) if run.advance()]
            print(f"{name:12} after round 2 {seen[1]:7.1f} MB, after round {len(seen)} {seen[-1]:7.1f} MB", end="")
            print(f", largest change {max(abs(mb / seen[1] - 1) for mb in seen[2:]):.2%}")
        return
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for round in range(arguments.rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run.advance()
            if round > 0:  # the first round has a welcome in it
                taken[name].append(time.perf_counter() - begin)
    first = next(iter(runs))
    print(f"{'method':12} {'s a round':>10} {'ratio':>6} {'allowed':>8}")
    for name, seconds in taken.items():
        ratio = statistics.median(own / base for own, base in zip(seconds, taken[first], strict=True))
        allowed = f"{TRAININGS[name] * 1.15:.2f}" if name in TRAININGS and name != first else ""
        print(f"{name:12} {statistics.median(seconds):10.3f} {ratio:6.2f} {allowed:>8}")


if __name__ == "__main__":
    main()
