"""A table as a run directory, for `coterie compare`, and as Markdown beside what was published."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reproduce.cells import Cell, Table
from benchmarks.reproduce.rows import load
from coterie.errors import CoterieError
from coterie.experiment.plan import plan
from coterie.reports import open_run
from coterie.runs import About, History, RunDirectory
from coterie.yamltext import write_yaml

NAMES = {"accuracy": "accuracy_mean", "r_acc": "r_acc", "ptr": "ptr", "gain": "gain_mean", "mae": "mae_mean"}
"""The keys of a summary's row."""


def as_run(table: Table, path: Path) -> RunDirectory:
    """Write the finished cells as a run directory, each at its reported round, and its curve.

    Raises
    ------
    CoterieError
        There are none, or ``path`` exists.
    """
    rows = load(table)
    whole = [cell.label for cell in table.cells if cell.hash in rows]
    if not whole:
        raise CoterieError(f"No cell of {table.name} has been run: python -m benchmarks.reproduce run {table.name}")
    systems = [system for system in plan(table.config).systems if system.label in whole]
    by_label = {system.label: system for system in systems}
    run, history, config = RunDirectory.create(path, name=table.name), History(), table.config
    for cell in table.cells:
        if (row := rows.get(cell.hash)) is None:
            continue
        key = (*by_label[cell.label].key, cell.seed)
        for split, values in (("validation", row.validation), ("test", row.values)):
            if values:
                history.add_clients(*key, row.round, split, row.clients, row.examples, row.metric, values)
        for at, value in row.curve.items():
            if int(at) != row.round:
                history.add(*key, int(at), "test", row.metric, value)
        history.add_timing(*key, row.round, "train", row.seconds)
    history.write(run)
    labels = {system.key: system.label for system in systems}
    reference = next(system.key for system in plan(config).systems if system.algorithm == "local")
    task: Any = "regression" if row_metric(table) == "mae" else "classification"
    About(
        table.name, task, config.report, config.rounds, tuple(config.seeds), (), labels, reference, config.metric
    ).write(run)
    kept = {cell.label: cell.entry for cell in table.cells if cell.label in labels.values()}
    tree = config.model_copy(update={"algorithms": list(kept.values())}).as_dict()
    run.config.write_text(write_yaml(tree), encoding="utf-8")
    return run


def row_metric(table: Table) -> str:
    """In which the table's cells are reported."""
    return next(iter(load(table).values())).metric


def markdown(table: Table) -> Iterator[str]:
    """The table beside the published figures, one line a system, and which cells are missing."""
    rows, cells = load(table), table.cells
    yield f"**{table.title}**: `{table.command}`"
    yield ""
    summary: dict[str, dict[str, Any]] = {}
    if rows:
        with tempfile.TemporaryDirectory() as folder:
            run = open_run(as_run(table, Path(folder) / "run").path)
            summary = {str(row["label"]): row for row in run.rows}
    heads = " / ".join(table.columns)
    yield f"| system | published {heads} | ours {heads} | difference | seeds | minutes |"
    yield "|---|---|---|---|---|---|"
    for label in dict.fromkeys(cell.label for cell in cells):
        told = table.published.get(label, [])
        published = " / ".join(number(value, sign=place == 1) for place, value in enumerate(told))
        if label not in summary:
            yield f"| {label} | {published} | not run | | | |"
            continue
        row, own = summary[label], _of_label(cells, label)
        seconds = [rows[cell.hash].seconds for cell in own if cell.hash in rows]
        ours = _ours(table, row, alone=label == "local", seeds=len(seconds))
        difference = f"{row[NAMES[table.columns[0]]] - told[0]:+.4f}" if told else ""
        minutes = f"{sum(seconds) / len(seconds) / 60:.1f}"
        yield f"| {label} | {published} | {ours} | {difference} | {len(seconds)} of {len(own)} | {minutes} |"


def _of_label(cells: list[Cell], label: str) -> list[Cell]:
    return [cell for cell in cells if cell.label == label]


def _ours(table: Table, row: dict[str, Any], *, alone: bool, seeds: int) -> str:
    first, *others = table.columns
    mean, deviation = row[NAMES[first]], row.get(NAMES[first].replace("_mean", "_std"))
    parts = [number(mean) + (f" ± {number(deviation)}" if seeds > 1 and deviation is not None else "")]
    parts += [number(row[NAMES[name]], sign=name == "r_acc") for name in others if not alone]
    return " / ".join(parts)


def number(value: float, *, sign: bool = False) -> str:
    """A figure with four places and without a leading nought."""
    text = f"{value:+.4f}" if sign else f"{value:.4f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
