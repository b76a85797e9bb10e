"""Finished cells, one line of JSON each, in ``results/TABLE.jsonl``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.reproduce.cells import HERE, Table

RESULTS = HERE / "results"


@dataclass(frozen=True)
class Row:
    """What one cell came to.

    ``values`` and ``validation`` are the results of the ``clients`` in the reported ``round``, ``examples`` how many
    test examples each has; ``curve`` is the mean test result by evaluated round. ``seconds`` are those of training and
    evaluation.
    """

    label: str
    seed: int
    hash: str
    command: str
    metric: str
    mean: float
    round: int
    seconds: float
    device: str
    version: str
    clients: list[str]
    values: list[float]
    validation: list[float]
    examples: list[int]
    curve: dict[str, float]


def path_of(table: Table) -> Path:
    """The file of a table's rows."""
    return RESULTS / f"{table.name}.jsonl"


def load(table: Table) -> dict[str, Row]:
    """The rows of the cells that the table has today, by hash, in whatever table's file they stand."""
    known = {cell.hash for cell in table.cells}
    lines = (line for path in sorted(RESULTS.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
    rows = [Row(**json.loads(line)) for line in lines if line]
    return {row.hash: row for row in rows if row.hash in known}


def append(table: Table, rows: list[Row]) -> None:
    """Add rows at the end of the table's file."""
    RESULTS.mkdir(exist_ok=True)
    with path_of(table).open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(asdict(row), separators=(", ", ": ")) + "\n")
