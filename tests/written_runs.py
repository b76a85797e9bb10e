"""Run directories written by hand, so that nothing has to be trained before it is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.evaluation.tables import CLIENTS, FAILURES, HISTORY, TIMINGS
from coterie.reports import OpenedRun, open_run
from coterie.runs import About, RunDirectory, save_relations

SYSTEMS = {("local", ""): "LOCAL", ("fedavg", ""): "FedAvg", ("fedora", "released"): "FEDORA"}


def write_run(
    folder: Path,
    *,
    k: int = 5,
    rounds: Sequence[int] = (2, 4, 6),
    planned: int = 6,
    seeds: Sequence[int] = (0, 1),
    systems: dict[tuple[str, str], str] | None = None,
    related: bool = True,
    portrait: bool = True,
    classes: int = 3,
    names: Sequence[str] | None = None,
) -> OpenedRun:
    """A classification of ``k`` clients evaluated in ``rounds``; numbers are random but for those of LOCAL, 0.5."""
    systems = systems or SYSTEMS
    directory = RunDirectory.create(folder, "written")
    names = list(names or [f"client-{i:02d}" for i in range(k)])
    About("written", "classification", "last", planned, tuple(seeds), (), systems, ("local", "")).write(directory)
    rng = np.random.default_rng(0)
    clients, history = [], []
    for system in systems:
        for seed in seeds:
            for number in rounds:
                value = rng.uniform(0.3, 0.8, k).round(3) if system[0] != "local" else np.full(k, 0.5)
                head = (*system, seed, number)
                clients += [
                    (*head, "evaluate", "test", name, 10 + i, "accuracy", v)
                    for i, (name, v) in enumerate(zip(names, value, strict=True))
                ]
                history.append((*head, "evaluate", "test", "accuracy", value.mean()))
                history.append((*head, "evaluate", "validation", "accuracy", value.mean() - 0.1))
                if system[0] != "local":
                    history.append((*head, "train", "", "bytes_up:model", 1e6))
                if system[0] == "fedora" and related:
                    matrix = rng.dirichlet(np.ones(k), k).astype(np.float32)
                    matrix[np.diag_indices(k)] += 4.0
                    matrix /= matrix.sum(1, keepdims=True)
                    similarity = rng.uniform(0, 0.3, (k, k)).astype(np.float32)
                    matrices = {"similarity": similarity, "propagation": matrix}
                    save_relations(directory, *system, seed, number, names, matrices)
    pd.DataFrame(clients, columns=list(CLIENTS)).to_parquet(directory.clients)
    pd.DataFrame(history, columns=list(HISTORY)).to_parquet(directory.history)
    pd.DataFrame([], columns=list(TIMINGS)).to_parquet(directory.timings)
    pd.DataFrame([], columns=list(FAILURES)).to_csv(directory.failures, index=False)
    if portrait:
        counts = rng.integers(0, 20, (k, classes))
        content = {
            "names": names,
            "n": {split: counts.sum(1).tolist() for split in ("train", "validation", "test")},
            "columns": {"angle": [10.0 * i for i in range(k)], "group": [float(i % 2) for i in range(k)]},
            "class_counts": counts.tolist(),
            "similarity_mean": rng.uniform(-0.2, 0.5, k).round(4).tolist(),
        }
        directory.federation.write_text(json.dumps(content))
    return open_run(folder)
