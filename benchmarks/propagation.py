"""FEDORA's server algebra: one round at few clients against a matrix product, and two graphs of very many clients.

    python benchmarks/propagation.py                 # all three parts, about 14 GB of memory
    python benchmarks/propagation.py few paper       # some of them: few, paper, released

``few``: 100 clients, d = 100,000. What the server does in a round after the graph is known (keep the uploads,
propagate) beside one float32 product A @ Theta, medians of repetitions in turns.

``paper`` and ``released``: 10,000 clients with FEDORA's MLP (d = 118,282), in 20 noisy groups of subspaces of
dimension 50. From the subspaces to the propagation, then one propagation of all models; the error bound, or the
residual. Every part runs in a process of its own, so that its peak of memory is its own; Theta and Theta_hat alone
take 9.5 GB there.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Answers, Server, make_algorithm
from coterie.models import Layout, Models

FEW = {"0.weight": (112, 784), "0.bias": (112,), "2.weight": (100, 112), "2.bias": (100,), "4.weight": (10, 100)}
MLP = {
    "0.weight": (128, 784), "0.bias": (128,), "2.weight": (128, 128), "2.bias": (128,), "4.weight": (10, 128),
    "4.bias": (10,),
}  # fmt: skip
REPETITIONS = 15


def subspaces(clients: int, *, groups: int = 20, dimension: int = 50, noise: float = 0.3) -> Tensor:
    """Unit vectors ``(K, dimension, 1)`` around those of ``groups``, moved by noise of about the given length."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(groups, dimension, generator=generator))
    moved = torch.randn(clients, dimension, generator=generator) * noise / dimension**0.5
    return torch.nn.functional.normalize(centres[torch.arange(clients) % groups] + moved).unsqueeze(2)


def random_models(clients: int, shapes: dict[str, tuple[int, ...]], seed: int) -> Models:
    layout = Layout(tuple(shapes), (), {name: torch.Size(shape) for name, shape in shapes.items()}, frozenset())
    generator = torch.Generator().manual_seed(seed)
    return Models(
        layout, {name: torch.randn(clients, *shape, generator=generator) for name, shape in shapes.items()}
    )  # fmt: skip


class Memory:
    """A server's attributes."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        return self.values[name]

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value


def server_of(clients: int, models: Callable[[], Models]) -> Server:
    """A server whose clients answer at once: with their subspaces, or with ``models``."""
    bases = subspaces(clients)

    def ask(method: Any, asked: Tensor, *, average: Tensor | None, payload: Any) -> Answers:
        describing = method.__name__ == "describe"
        return Answers(asked, {"basis": bases[asked]} if describing else {"theta": models()}, asked)

    return Server(
        names=tuple(f"client-{k:05d}" for k in range(clients)), n=torch.ones(clients), seed=0, task="classification",
        classes=10, store=Memory(), ask=ask, initial=lambda count, distinct: models()[:1].clone().repeat(count),
    )  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def few(variant: str, clients: int = 100) -> None:
    """The server's part of a round beside the product, in turns."""
    uploads = random_models(clients, FEW, 1)
    everyone, flat = torch.arange(clients), uploads.flat()
    algorithm: Any = make_algorithm("fedora", variant)
    server = server_of(clients, lambda: uploads)
    algorithm.setup(server)
    algorithm.welcome(server, everyone)
    algorithm.round(server, everyone)
    A, out = server.propagation.float(), torch.empty_like(flat)
    turns: dict[str, list[float]] = {"product": [], "propagation": [], "round": []}
    for _ in range(REPETITIONS):
        turns["product"].append(seconds(lambda: torch.matmul(A, flat, out=out)))
        turns["propagation"].append(seconds(lambda: server.theta.mixed(server.propagation, out=server.theta_hat)))
        turns["round"].append(seconds(lambda: algorithm.round(server, everyone)))
    medians = {name: statistics.median(times) for name, times in turns.items()}
    print(
        f"{variant:<9} K {clients}, d {uploads.d:,}: product {1e3 * medians['product']:.1f} ms, "
        f"propagation {1e3 * medians['propagation']:.1f} ms ({medians['propagation'] / medians['product']:.2f} x), "
        f"server's round {1e3 * medians['round']:.1f} ms ({medians['round'] / medians['product']:.2f} x)"
    )


def many(variant: str, clients: int) -> None:
    """From the subspaces to the propagation of all models."""
    algorithm: Any = make_algorithm("fedora", variant)
    theta = random_models(clients, MLP, 1)
    server = server_of(clients, lambda: theta)
    algorithm.setup(server)
    server.met.add(torch.arange(clients))
    server.basis, server.seen = subspaces(clients), torch.ones(clients, dtype=torch.bool)
    server.theta, server.theta_hat = theta, server.initial_models()
    ready = peak()
    connecting = seconds(lambda: algorithm.connect(server))
    connected = peak()
    first = seconds(lambda: server.theta.mixed(server.propagation, out=server.theta_hat))
    again = seconds(lambda: server.theta.mixed(server.propagation, out=server.theta_hat))
    error = ", ".join(f"{name} {value:.2e}" for name, value in algorithm.notes(server).items())
    print(
        f"{variant:<9} K {clients:,}, d {theta.d:,}, solver {algorithm.how(clients)}: graph and solver "
        f"{connecting:.1f} s, first propagation {first:.1f} s, together {connecting + first:.1f} s, each further "
        f"{again:.1f} s; {error}; peak {peak():.2f} GiB ({ready:.2f} before, {connected:.2f} with the solver)"
    )


def peak() -> float:
    """Largest resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["few", "paper", "released"])
    parser.add_argument("--clients", type=int, default=10_000, help="of the parts paper and released")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        torch.set_num_threads(arguments.threads)
        if arguments.one == "few":
            few("paper")
            few("released")
        else:
            many(arguments.one, arguments.clients)
        return
    for part in arguments.parts:
        options = ["--clients", str(arguments.clients), "--threads", str(arguments.threads)]
        subprocess.run([sys.executable, __file__, "--one", part, *options], check=True)


if __name__ == "__main__":
    main()
