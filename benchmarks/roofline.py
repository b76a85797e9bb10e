"""The roofline of one stacked training step for batches of 1 to 256, and where its time goes. Needs matplotlib.

    python benchmarks/roofline.py docs/roofline.svg

A step's floating-point operations are counted from the layers; its bytes are those of a step that holds nothing in a
cache: all weights four times (read forward and backward, read and written by the update) and the inputs twice. Roofs
are the speed of a large matrix product and the bandwidth of copies, one of a size that memory has to serve and one of
the size of the stack's models, which a cache may hold. One thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from torch.profiler import ProfilerActivity, profile

from training import Training

BATCHES = (1, 2, 4, 8, 10, 16, 32, 64, 128, 256)
CLIENTS, STEPS = 12, 4
WIDTHS = (784, 128, 128, 10)


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call."""
    run()
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return median(times)


def peak(repeats: int) -> float:
    """Floating-point operations a second of a matrix product of size 2,048."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / seconds(lambda: a @ b, repeats)


def bandwidth(size: int, repeats: int) -> float:
    """Bytes a second, read and written, of copying a tensor of ``size`` bytes."""
    source = torch.randn(size // 4)
    target, times = torch.empty_like(source), max(1, 10**8 // size)

    def run() -> None:
        for _ in range(times):
            target.copy_(source)

    return 2 * size * times / seconds(run, repeats)


def step(batch: int, repeats: int) -> tuple[float, float]:
    """Operations a byte and operations a second of a step of all clients with this batch."""
    training = Training("mlp", CLIENTS, STEPS * batch, batch)
    products = [a * b for a, b in pairwise(WIDTHS)]
    flops = CLIENTS * batch * 2 * (3 * sum(products) - products[0])
    moved = CLIENTS * 4 * (4 * training.stack.layout.d + 2 * batch * WIDTHS[0])
    return flops / moved, flops * STEPS / seconds(training.run, repeats)


def draw(path: Path, repeats: int) -> None:
    """Measure and draw."""
    top = peak(repeats)
    size = 4 * CLIENTS * Training("mlp", 1, 1, 1).stack.layout.d
    roofs = {"copy from memory": bandwidth(2**28, repeats), "copy of the size of the models": bandwidth(size, repeats)}
    points = {batch: step(batch, repeats) for batch in BATCHES}
    print(f"matrix product {top / 1e9:.1f} GFLOP/s")
    for name, speed in roofs.items():
        print(f"{name} {speed / 1e9:.1f} GB/s")
    print("\n| batch | FLOP / byte | GFLOP/s | of the matrix product |\n|---|---|---|---|")
    for batch, (intensity, speed) in points.items():
        print(f"| {batch} | {intensity:.1f} | {speed / 1e9:.1f} | {speed / top:.0%} |")
    matplotlib.rcParams["svg.hashsalt"] = "coterie"
    figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    span = [0.2, 200]
    for (name, speed), style in zip(roofs.items(), ("--", ":"), strict=True):
        knee = top / speed
        axis.plot(
            [span[0], knee, span[1]], [speed * span[0] / 1e9, top / 1e9, top / 1e9], style, color="#8a8a8a", label=name
        )
    axis.plot(
        *zip(*((x, y / 1e9) for x, y in points.values()), strict=True), "o-", color="#2a7f9e", label="stacked step"
    )
    for batch, (x, y) in points.items():
        axis.annotate(str(batch), (x, y / 1e9), textcoords="offset points", xytext=(4, -11), fontsize=8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("floating-point operations a byte")
    axis.set_ylabel("GFLOP/s")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def profiled(batch: int) -> None:
    """Print which operations an epoch of all clients spends its time in."""
    training = Training("mlp", CLIENTS, 12 * batch, batch)
    training.run()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(5):
            training.run()
    rows = sorted(seen.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)
    total = sum(row.self_cpu_time_total for row in rows)
    print(f"\nbatch {batch}\n\n| operation | calls a step | of the time |\n|---|---|---|")
    for row in rows[:8]:
        print(f"| `{row.key}` | {row.count / 60:.1f} | {row.self_cpu_time_total / total:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    draw(arguments.picture, arguments.repeats)
    for batch in (10, 64):
        profiled(batch)


if __name__ == "__main__":
    main()
