"""Tables in Markdown, ours beside what was published, and where they stand in the documentation."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reproduce.cells import Cell, Table
from benchmarks.reproduce.filled import as_run
from benchmarks.reproduce.rows import load
from coterie.errors import CoterieError
from coterie.reports import open_run

NAMES = {
    "accuracy": "accuracy_mean",
    "r_acc": "r_acc",
    "ptr": "ptr",
    "gain": "gain_mean",
    "mae": "mae_mean",
    "r_mae": "r_mae",
}
"""The keys of a summary's row."""
HEADS = {
    "accuracy": "Acc",
    "r_acc": "R-Acc",
    "ptr": "PTR",
    "gain": "gain (points)",
    "mae": "MAE",
    "r_mae": "R-MAE",
}
PLACE = re.compile(r"<!-- table (?P<name>\S+) -->\n.*?<!-- end -->", re.DOTALL)


def markdown(table: Table) -> Iterator[str]:
    """The table beside the published figures, one line a system, and below it those that have not been run."""
    rows, cells = load(table), table.cells
    yield f"**{table.title}**: `{table.command}`"
    yield ""
    summary: dict[str, dict[str, Any]] = {}
    if rows:
        with tempfile.TemporaryDirectory() as folder:
            run = open_run(as_run(table, Path(folder) / "run").path)
            summary = {str(row["label"]): row for row in run.rows}
    heads = " / ".join(HEADS[column] for column in table.columns)
    labels = list(dict.fromkeys(cell.label for cell in cells))
    if summary:
        yield f"| system | published {heads} | Coterie | difference | seeds | minutes |"
        yield "|---|---|---|---|---|---|"
    for label in labels:
        if label not in summary:
            continue
        row, own, figures = summary[label], _of_label(cells, label), table.published.get(label, [])
        published = " / ".join(number(name, value) for name, value in zip(table.columns, figures, strict=False))
        seconds = [rows[cell.hash].seconds for cell in own if cell.hash in rows]
        ours = _ours(table, row, alone=label == "local", seeds=len(seconds))
        difference = number("r_acc", row[NAMES[table.columns[0]]] - figures[0]) if figures else ""
        minutes = f"{median(seconds) / 60:.1f}"
        yield f"| {label} | {published} | {ours} | {difference} | {len(seconds)} of {len(own)} | {minutes} |"
    if left := [label for label in labels if label not in summary]:
        if summary:
            yield ""
        told = f", with the published {HEADS[table.columns[0]]}" if any(map(table.published.get, left)) else ""
        yield f"Not run{told}: {'; '.join(_left(table, label) for label in left)}."


def written(text: str, tables: Mapping[str, Table]) -> str:
    """``text`` with every table as it is today between the lines ``<!-- table NAME -->`` and ``<!-- end -->``.

    Raises
    ------
    CoterieError
        There is no such table.
    """

    def today(place: re.Match[str]) -> str:
        name = place["name"]
        if name not in tables:
            raise CoterieError(f"<!-- table {name} -->: there is no such table.")
        return "\n".join([f"<!-- table {name} -->", *markdown(tables[name]), "<!-- end -->"])

    return PLACE.sub(today, text)


def _left(table: Table, label: str) -> str:
    told = table.published.get(label)
    return f"{label} {number(table.columns[0], told[0])}" if told else label


def _of_label(cells: list[Cell], label: str) -> list[Cell]:
    return [cell for cell in cells if cell.label == label]


def _ours(table: Table, row: dict[str, Any], *, alone: bool, seeds: int) -> str:
    first, *others = table.columns
    mean, deviation = row[NAMES[first]], row.get(NAMES[first].replace("_mean", "_std"))
    parts = [number(first, mean) + (f" ± {number(first, deviation)}" if seeds > 1 and deviation is not None else "")]
    parts += [number(name, row[NAMES[name]]) for name in others if not alone]
    return " / ".join(parts)


def number(column: str, value: float) -> str:
    """A figure without a leading nought: relative gains with their sign, gains in percentage points."""
    if column == "gain":
        return f"{value:+.2f}"
    text = f"{value:+.4f}" if column in ("r_acc", "r_mae") else f"{value:.4f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
