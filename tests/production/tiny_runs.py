"""A real run of a mixture, tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coterie
from coterie.federation import Federation, build_federation

FEDERATION = {
    "source": "digits", "partition": {"rule": "rotation", "clients": 4}, "train": 12, "validation": 6, "test": 10,
    "normalise": [0.3, 0.4],
}  # fmt: skip
TINY: dict[str, Any] = {
    "name": "tiny", "federation": FEDERATION, "model": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 2, "batch_size": 4, "lr": 0.1}, "algorithms": ["local", "fedem"], "rounds": 3,
    "report": "last", "threads": 1, "seeds": [0],
}  # fmt: skip


def tiny_run(folder: Path, **changes: Any) -> tuple[Any, Federation]:
    """The run's result and its federation."""
    tree = {**TINY, **changes}
    return coterie.run(tree, output=folder / "run"), build_federation(tree["federation"], seed=0)
