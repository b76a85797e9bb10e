"""Run directories whose results are stated, not trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.config import load_config
from coterie.runs import About, History, RunDirectory
from coterie.yamltext import write_yaml

Results = Mapping[str, Mapping[int, Sequence[float]]]
"""Each client's test accuracy by method (``name`` or ``name:variant``) and seed."""

BASE: dict[str, Any] = {
    "name": "stated",
    "federation": {"source": "digits", "partition": {"rule": "dirichlet", "clients": 4, "alpha": 0.5}},
    "rounds": 2,
    "evaluate_every": 1,
}


def made(folder: Path, results: Results, *, labels: Mapping[str, str] | None = None, **changes: Any) -> Path:
    """A finished run directory with these results in round 2, and worse ones in round 1; returns its path.

    ``changes`` are configuration keys; ``algorithms`` is by default the methods of ``results``.
    """
    systems = {name: (name.partition(":")[0], name.partition(":")[2]) for name in results}
    tree = {**BASE, "algorithms": [_entry(*system) for system in systems.values()], **changes}
    config = load_config(tree)
    run = RunDirectory.create(folder, config.name)
    run.write_config(write_yaml(config.as_dict()))
    names = {systems[key]: label for key, label in (labels or {}).items()}
    About(
        name=config.name,
        task="classification",
        report=config.report,
        rounds=config.rounds,
        seeds=tuple(dict.fromkeys(seed for by_seed in results.values() for seed in by_seed)),
        targets=(),
        labels={
            system: names.get(system, f"{system[0]} ({system[1]})" if system[1] else system[0])
            for system in systems.values()
        },
        reference=("local", ""),
    ).write(run)
    history = History()
    for name, by_seed in results.items():
        for seed, values in by_seed.items():
            clients = [f"client-{i}" for i in range(len(values))]
            for number in (1, 2):
                for split in ("validation", "test"):
                    reached = [value - 0.01 * (2 - number) for value in values]
                    history.add_clients(
                        *systems[name], seed, number, split, clients, [10] * len(values), "accuracy", reached
                    )
                entry = {"phase": "train", "direction": "up", "kind": "model", "bytes": 100}
                history.add_ledger(*systems[name], seed, number, [entry])
                history.add_timing(*systems[name], seed, number, "train", 1.0)
    history.write(run)
    return folder


def _entry(name: str, variant: str) -> Any:
    return {"name": name, "variant": variant} if variant else name
