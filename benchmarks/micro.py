"""Times a handful of kernels as ratios to fixed reference kernels, and says which are slower than they were.

    python benchmarks/micro.py           # exit status 1 where a kernel takes more than 1.6 times its stored ratio
    python benchmarks/micro.py --save    # store the ratios of this run in micro.json

A reference runs right before and after every kernel, in the same process: what else the machine does, and which machine
it is, slows both. Training is compared with a plain loop of torch, server algebra with a matrix product.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table

from coterie.relations.distances import squared_distances
from coterie.training import hits, means
from training import Training

BASELINE = Path(__file__).with_suffix(".json")
MARGIN = 1.6

Run = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """What is timed, and the reference that it is a multiple of."""

    name: str
    run: Run
    reference: str


def product(size: int) -> Run:
    """A matrix product in float32."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return lambda: a @ b


def loop(network: str, examples: int, batch: int) -> Run:
    """One epoch of a module and an optimiser over slices of a tensor."""
    one = Training(network, 1, examples, batch)
    module = one.stack.build()
    inputs, targets = one.data.inputs, one.data.targets

    def run() -> None:
        optimiser = torch.optim.SGD(module.parameters(), 0.01)
        for x, y in zip(inputs.split(batch), targets.split(batch), strict=True):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimiser.step()

    return run


def evaluation(network: str, examples: int, batch: int) -> Run:
    """A module in evaluation mode over slices of a tensor."""
    one = Training(network, 1, examples, batch)
    module = one.stack.build().eval()

    @torch.no_grad()
    def run() -> None:
        for x in one.data.inputs.split(batch):
            module(x)

    return run


def kernels(tiny: bool) -> tuple[dict[str, Run], list[Kernel]]:
    """References by name, and kernels; ``tiny`` ones only show that all of it runs."""

    def size(usual: int, small: int) -> int:
        return small if tiny else usual

    K = size(100, 3)
    ten = Training("mlp", size(12, 2), size(120, 20), 10)
    many = Training("mlp", size(12, 2), size(256, 64), 64)
    seen = Training("mlp", K, size(100, 4), 64)
    planned = Training("mlp", size(1000, 5), 40, 10)
    convolutional = Training("pgfed-cnn", 1, size(60, 10), 10)
    pictures = Training("pgfed-cnn", 1, size(1024, 10), 10)
    mixing = torch.rand(K, K, dtype=torch.float64)
    mixing /= mixing.sum(1, keepdim=True)
    theta, blocks = seen.theta, list(seen.theta.tensors.values())
    references = {
        "product": product(size(768, 32)),
        "mlp loop": loop("mlp", size(600, 20), 10),
        "cnn loop": loop("pgfed-cnn", size(60, 10), 10),
        "cnn evaluation": evaluation("pgfed-cnn", size(1024, 10), 64),
    }

    def evaluated(one: Training) -> Run:
        return lambda: means(one.stack, one.theta, one.data, {"hits": hits})

    return references, [
        Kernel("stacked training, batch 10", ten.run, "mlp loop"),
        Kernel("stacked training, batch 64", many.run, "mlp loop"),
        Kernel("convolutional training of one client", convolutional.run, "cnn loop"),
        Kernel(f"evaluation of {K} clients", evaluated(seen), "product"),
        Kernel("convolutional evaluation of one client", evaluated(pictures), "cnn evaluation"),
        Kernel(f"models of {K} clients mixed", lambda: theta.mixed(mixing), "product"),
        Kernel(f"distances of {K} models", lambda: squared_distances(blocks), "product"),
        Kernel(f"batches of {planned.clients} clients", lambda: list(planned.plan()), "product"),
    ]


def seconds(run: Run) -> float:
    """Wall time of one call."""
    begin = perf_counter()
    run()
    return perf_counter() - begin


def ratios(references: dict[str, Run], measured: list[Kernel], repeats: int) -> dict[str, float]:
    """The median, over ``repeats`` turns, of a kernel's time divided by its reference's time around it."""
    found: dict[str, list[float]] = {kernel.name: [] for kernel in measured}
    for kernel in measured:
        kernel.run()
        references[kernel.reference]()
    for _ in range(repeats):
        for kernel in measured:
            reference = references[kernel.reference]
            before, own, after = seconds(reference), seconds(kernel.run), seconds(reference)
            found[kernel.name].append(2 * own / (before + after))
    return {name: median(values) for name, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--save", action="store_true", help=f"store the ratios in {BASELINE.name}")
    parser.add_argument("--tiny", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="another file of stored ratios")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    references, measured = kernels(arguments.tiny)
    found = ratios(references, measured, arguments.repeats)
    stored = json.loads(arguments.baseline.read_text()) if arguments.baseline.exists() else {}
    table = Table("kernel", "in times of")
    for column in ("ratio", "stored", "change"):
        table.add_column(column, justify="right")
    slower = []
    for kernel in measured:
        now, then = found[kernel.name], stored.get(kernel.name)
        change = now / then if then else None
        if change is not None and change > MARGIN:
            slower.append(kernel.name)
        table.add_row(
            kernel.name,
            kernel.reference,
            f"{now:.3f}",
            f"{then:.3f}" if then else "",
            f"{change:.2f}{' slower' if change > MARGIN else ''}" if change else "new",
        )
    Console().print(table)
    if arguments.save:
        arguments.baseline.write_text(
            json.dumps({name: round(value, 4) for name, value in found.items()}, indent=1) + "\n"
        )
        return 0
    if slower:
        print(f"slower than {MARGIN} times the stored ratio: {', '.join(slower)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
