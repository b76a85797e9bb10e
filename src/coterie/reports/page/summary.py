"""The tables of the page as text: the summary and the newcomers, with the numbers behind their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.runs.columns import UNDEFINED, columns, metric_of_rows
from coterie.runs.table import caption

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One cell: what is printed, the number that it sorts by (empty where there is none), and whether it is best."""

    text: str
    value: str = ""
    best: bool = False


def summary_heads(rows: Sequence[Row]) -> list[str]:
    """The headers of the summary, that of the systems first."""
    return ["System", *(column.header.replace("\n", " ") for column in columns(metric_of_rows(rows)))]


def summary_cells(rows: Sequence[Row]) -> list[list[Cell]]:
    """The cells of the summary, line by line, the system's name first."""
    table = [[Cell(str(row["label"]))] for row in rows]
    for column in columns(metric_of_rows(rows)):
        for line, row, mark in zip(table, rows, column.marks(rows), strict=True):
            value = column.number(row)
            line.append(Cell(column.show(row), "" if value is None else repr(value), mark == "best"))
    return table


def summary_caption(rows: Sequence[Row]) -> str:
    """What the numbers of the summary are."""
    return " ".join(caption(rows))


def verdict(rows: Sequence[Row]) -> list[str]:
    """One sentence about the system that leaves most clients no worse off than alone, and one about who loses."""
    compared = [row for row in rows if not row["reference"] and row["ptr"] is not None]
    if not compared:
        return []
    # who keeps its own model loses nothing, but has nothing of the others either
    best = max(compared, key=lambda row: ((row["gain_mean"] or 0.0) > 0, row["ptr"], row["gain_mean"] or 0.0))
    share = f"With {best['label']}, {100 * best['ptr']:.0f} % of the clients end no worse off than alone"
    if best["gain_mean"] is not None:
        points = best["gain_mean"]
        share += f"; on average they {'gain' if points >= 0 else 'lose'} {abs(points):.1f} percentage points"
    sentences = [f"{share}."]
    harmful = max(compared, key=lambda row: row["harmed"] / max(1, row["compared"]))
    if harmful is not best and harmful["harmed"]:
        sentences.append(
            f"With {harmful['label']}, {100 * harmful['harmed'] / max(1, harmful['compared']):.0f} % are worse off."
        )
    return sentences


def newcomers_of(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Heads and cells of the newcomers' table; None without newcomers."""
    if not rows:
        return None
    epochs = max(row["epochs"] for row in rows)
    shown = sorted({0, *(epoch for epoch in (1, 5) if epoch < epochs), epochs})
    heads = ["System", "Labels", *("on arrival" if epoch == 0 else f"{epoch} epochs" for epoch in shown), "Gain", "PTR"]
    lines = []
    for row in rows:
        values = [row["curve"][epoch] if epoch <= row["epochs"] else None for epoch in shown]
        line = [Cell(str(row["label"])), Cell("yes" if row["labelled"] else "no", str(int(row["labelled"])))]
        line += [_cell(value, ".3f") for value in values]
        line += [_cell(row["gain_mean"], "+.3g"), _cell(row["ptr"], ".2f")]
        lines.append(line)
    return {"heads": heads, "rows": lines}


def _cell(value: float | None, form: str) -> Cell:
    return Cell(UNDEFINED) if value is None else Cell(format(value, form), repr(value))
