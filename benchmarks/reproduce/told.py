"""A table in Markdown, ours beside what was published."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reproduce.cells import Cell, Table
from benchmarks.reproduce.filled import as_run
from benchmarks.reproduce.rows import load
from coterie.reports import open_run

NAMES = {"accuracy": "accuracy_mean", "r_acc": "r_acc", "ptr": "ptr", "gain": "gain_mean", "mae": "mae_mean"}
"""The keys of a summary's row."""


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
