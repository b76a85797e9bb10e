"""Three sites with tables that have gaps, and categories that not all of them know; and their simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import coterie

SITES = ("east", "north", "west")
COLUMNS: dict[str, Any] = {
    "target": "state", "labels": ["healthy", "sick"], "split": "part", "missing": "mark", "categorical": ["ward"],
    "preprocessing": "federated",
}  # fmt: skip
EXPERIMENT: dict[str, Any] = {
    "name": "patients",
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"epochs": 2, "batch_size": 64, "lr": 0.2},  # all rows at once, since each draws an order of its own
    "algorithms": ["local", "fedavg"],
    "rounds": 2,
    "evaluate_every": 1,
    "dtype": "float64",
    "page": False,
}


def table(number: int, n: int = 30) -> pd.DataFrame:
    """The rows of a site: gaps in numbers and categories, and categories that not every site has."""
    generator = np.random.default_rng(number)
    pressure = generator.normal(120 + 15 * number, 10, n).round(2).astype(str).astype(object)
    pressure[3 + number :: 9] = "NA"
    colour = generator.choice(["red", "green", ("blue", "black", "white")[number]], n).astype(object)
    colour[::11] = ""
    return pd.DataFrame(
        {
            "age": generator.integers(20, 80, n),
            "pressure": pressure,
            "colour": colour,
            "ward": generator.integers(1, 3 + number, n),
            "state": generator.choice(["healthy", "sick"], n),
            "part": (["train"] * 4 + ["validation"] + ["test"]) * (n // 6),
        }
    )


def simulate(folder: Path, columns: Mapping[str, Any] = COLUMNS, **changes: Any) -> Path:
    """The run directory of a simulation of all their rows."""
    whole = pd.concat([table(number).assign(site=name) for number, name in enumerate(SITES)])
    whole.to_csv(folder / "all.csv", index=False)
    federation = {"source": "table", "path": str(folder / "all.csv"), "client": "site", **columns}
    coterie.run({**EXPERIMENT, "federation": federation, **changes}, output=folder / "run")
    return folder / "run"
