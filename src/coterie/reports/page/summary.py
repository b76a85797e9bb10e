"""The tables of the page as text: the summary and the newcomers, with the numbers behind their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.evaluation.catalogue import metric_of
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
    gains = {row["label"]: _gain(row, rows) for row in compared}
    best = max(compared, key=lambda row: (gains[row["label"]] > 0, row["ptr"], gains[row["label"]]))
    share = f"With {best['label']}, {_percent(best['ptr'])} of the clients{_counted(best)} end no worse off than alone"
    if best["gain_mean"] is not None:
        points = best["gain_mean"]
        share += f"; on average they {'gain' if points >= 0 else 'lose'} {abs(points):.1f} percentage points"
    sentences = [f"{share}."]
    harmful = max(compared, key=lambda row: row["harmed"] / max(1, row["compared"]))
    if harmful is not best and harmful["harmed"]:
        harmed = _percent(harmful["harmed"] / max(1, harmful["compared"]))
        sentences.append(f"With {harmful['label']}, {harmed} are worse off.")
    return sentences


def _counted(row: Row) -> str:
    """How many clients are compared with LOCAL, where some have no result."""
    each = row["clients"] * len(row["seeds"])
    return "" if row["compared"] == each else f" that can be compared ({row['compared']} of {each})"


def _gain(row: Row, rows: Sequence[Row]) -> float:
    """How much better a system's mean is than that of training alone, in the unit of the metric; 0 if unknown."""
    metric = metric_of_rows(rows)
    means = [row.get(f"{metric}_mean"), *(other.get(f"{metric}_mean") for other in rows if other["reference"])]
    if len(means) < 2 or means[0] is None or means[1] is None:
        return 0.0
    gain = float(means[0] - means[1])
    return gain if metric_of(metric).larger_is_better else -gain


def _percent(share: float) -> str:
    """A share as text, all and none only where it is so."""
    if 0 < share < 0.01:
        return "less than 1 %"
    return f"{min(99, round(100 * share)) if share < 1 else 100} %"


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
