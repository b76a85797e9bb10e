"""Seeds in one stack: what three seeds cost one by one, in one run, and in one run whose seeds share a stack.

Each is ``coterie run`` in a process of its own, so that starting up counts once a run; all with one computing thread
and one process, in turns. ``train`` is what the run's own clock counts for rounds and evaluations.

    python -m benchmarks.seeds [--rounds 40] [--repeats 1] [--works table,digits-8,digits-8-wide,quickstart]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

SEEDS = (0, 1, 2)
METHODS = ["fedavg", {"name": "ditto", "lambda": 0.1}, "fedora"]
WORKS: dict[str, dict[str, Any]] = {
    "table": {  # four hospitals
        "federation": {"source": "heart-disease", "partition": {"rule": "natural"}, "train": 0.6, "validation": 0.2},
        "model": {"name": "mlp", "hidden": [32]},
        "training": {"epochs": 5, "batch_size": 16, "lr": 0.02},
    },
    "digits-8": {
        "federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 8}, "train": 40,
                       "validation": 20, "test": "rest"},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"epochs": 5, "batch_size": 16, "lr": 0.02},
    },
    "digits-8-wide": {
        "federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 8}, "train": 40,
                       "validation": 20, "test": "rest"},
        "model": {"name": "mlp", "hidden": [128, 128]},
        "training": {"epochs": 5, "batch_size": 16, "lr": 0.02, "momentum": 0.9},
    },
    "quickstart": {
        "federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 20}, "train": 40,
                       "validation": 20, "test": "rest"},
        "model": {"name": "mlp", "hidden": [128, 128]},
        "training": {"epochs": 5, "batch_size": 16, "lr": 0.02, "momentum": 0.9},
    },
}  # fmt: skip


class Spent(NamedTuple):
    """Seconds of one or more runs."""

    wall: float
    cpu: float
    train: float


def run(tree: dict[str, Any], folder: Path, name: str, **changes: Any) -> Spent:
    """Run one configuration into a folder of its own."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**tree, **changes}), encoding="utf-8")
    words = [sys.executable, "-m", "coterie", "run", str(path), "--output", str(folder / name)]
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        raise SystemExit(f"{' '.join(words)} ended with status {status}")
    timings = pd.read_parquet(folder / name / "timings.parquet")
    return Spent(wall, usage.ru_utime + usage.ru_stime, float(timings["seconds"].sum()))


def difference(one: Path, other: Path) -> float:
    """The largest difference between the tables of two runs."""
    found = 0.0
    for table in ("history", "clients"):
        first, second = (pd.read_parquet(folder / f"{table}.parquet") for folder in (one, other))
        if not first.drop(columns="value").equals(second.drop(columns="value")):
            return float("nan")
        found = max(found, float(np.nanmax(np.abs(first["value"] - second["value"]))))
    return found


def measured(work: str, rounds: int, repeats: int) -> list[str]:
    """Lines of the table for one work."""
    tree = {**WORKS[work], "name": work, "algorithms": METHODS, "rounds": rounds, "evaluate_every": 5, "processes": 1}
    ways: dict[str, list[Spent]] = {"three runs": [], "one run, share: 1": [], "one run, share: 3": []}
    with tempfile.TemporaryDirectory() as place:
        for repeat in range(repeats):
            folder = Path(place) / str(repeat)
            folder.mkdir()
            single = [run(tree, folder, f"seed{seed}", seeds=[seed]) for seed in SEEDS]
            ways["three runs"].append(Spent(*(sum(values) for values in zip(*single, strict=True))))
            for share in (1, 3):
                spent = run(tree, folder, f"share{share}", seeds=list(SEEDS), share=share)
                ways[f"one run, share: {share}"].append(spent)
        apart = difference(folder / "share1", folder / "share3")
    middle = {way: Spent(*(median(values) for values in zip(*spent, strict=True))) for way, spent in ways.items()}
    first = middle["three runs"]
    lines = [
        f"| {work} | {way} | {spent.wall:.1f} | {spent.cpu:.1f} | {spent.train:.1f} "
        f"| {first.wall / spent.wall:.2f} | {first.cpu / spent.cpu:.2f} | {first.train / spent.train:.2f} |"
        for way, spent in middle.items()
    ]
    return [*lines, f"largest difference between the tables of share 1 and 3: {apart:.1e}"]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--works", default=",".join(WORKS), help=f"of {', '.join(WORKS)}")
    arguments = parser.parse_args()
    print("| work | three seeds as | wall s | CPU s | train s | saving wall | saving CPU | saving train |")
    print("|---|---|---|---|---|---|---|---|")
    for work in arguments.works.split(","):
        print("\n".join(measured(work, arguments.rounds, arguments.repeats)), flush=True)


if __name__ == "__main__":
    main()
