"""Peak memory of a federation of 1,000 clients with FEDORA's MLP (d = 118,282), method by method.

    python benchmarks/memory.py

Each method runs in a process of its own: two rounds of one epoch on random images, an evaluation after each, the best
round's models kept, and a checkpoint. Beside the peak stands the bound that it has to keep:
(K x d states of the method + one best snapshot + 0.3) x 4 K d bytes + 600 MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

# K x d states, at the server and at the clients together; a model that all clients share counts as none
STATES = {"local": 1, "fedavg": 0, "fedavg-ft": 0, "fedprox": 0, "ditto": 1, "fedamp": 2, "fedora": 3, "scaffold": 1}
SNAPSHOT = {"fedavg": 0, "fedprox": 0}  # the best model is one row


def measure(algorithm: str, clients: int) -> dict[str, float]:
    import torch

    from coterie.contract import make_algorithm
    from coterie.engines import Settings, Simulation, TrainingSettings, checkpoint
    from coterie.federation import Federation
    from coterie.federation.data import ClientData
    from coterie.models import ModelSpec

    def split(n: int, seed: int) -> ClientData:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (clients * n, 1, 28, 28), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, 10, (clients * n,), generator=generator)
        return ClientData(images, labels, torch.arange(clients + 1) * n, scale=1 / 255)

    names = tuple(f"client-{i:04d}" for i in range(clients))
    federation = Federation(names, split(20, 0), split(10, 1), split(10, 2), "classification", 10)
    training = TrainingSettings(epochs=1, batch_size=10, lr=0.01)
    settings = Settings(rounds=2, evaluate_every=1, training=training)
    simulation = Simulation(federation, make_algorithm(algorithm), ModelSpec("mlp"), settings)
    simulation.initial_report()
    while not simulation.finished:
        simulation.advance()
    running = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "run.pt", simulation)
    saved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"running": running, "saved": saved, "d": simulation.stack.layout.d}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(STATES))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.clients)))
        return
    print(f"{'method':<12}{'states':>7}{'bound MB':>10}{'rounds MB':>11}{'with checkpoint MB':>20}")
    for algorithm in arguments.algorithms:
        command = [sys.executable, __file__, "--one", algorithm, "--clients", str(arguments.clients)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        factor = STATES[algorithm] + SNAPSHOT.get(algorithm, 1) + 0.3
        bound = factor * 4 * arguments.clients * found["d"] / 2**20 + 600
        print(f"{algorithm:<12}{STATES[algorithm]:>7}{bound:>10.0f}{found['running']:>11.0f}{found['saved']:>20.0f}")


if __name__ == "__main__":
    main()
