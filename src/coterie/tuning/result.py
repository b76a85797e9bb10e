"""What a search gives back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from coterie.config import Config
from coterie.evaluation import metric_of

SHOWN = 20
"""So many of the best trials of each method stand in the printed table."""


@dataclass(frozen=True)
class Tuned:
    """What a search gave.

    Attributes
    ----------
    directory : Path
        Where everything about it lies.
    rows : list of dict
        One row a trial, as in ``trials.csv``.
    metric : str
        The column that was searched by, ``validation_accuracy``, ``validation_mae`` or that of the chosen metric.
    best : dict
        The best setting by method, values by key; methods of which every trial failed are missing.
    config : Config
        The experiment with the best settings in place, ready for `run`.
    failed : tuple of str
        Methods of which every trial failed, with a reason.
    remarks : tuple of str
        What to know before the tuned methods are compared.
    """

    directory: Path
    rows: list[dict[str, Any]]
    metric: str
    best: dict[str, dict[str, Any]]
    config: Config
    failed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def ranked(self) -> list[dict[str, Any]]:
        """The rows by method, the best first, failed ones last; equal ones in the order of the trials."""
        order = {method: i for i, method in enumerate(dict.fromkeys(row["method"] for row in self.rows))}
        sign = -1 if metric_of(self.metric.removeprefix("validation_")).larger_is_better else 1

        def place(row: dict[str, Any]) -> tuple[int, bool, float]:
            value = row[self.metric]
            return order[row["method"]], value is None, 0.0 if value is None else sign * value

        return sorted(self.rows, key=place)

    def table(self) -> Table:
        """The best trials of each method as a table for a terminal."""
        keys = [key for key in (self.rows[0] if self.rows else {}) if key not in self._fixed()]
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in ("method", "trial", "setting", self.metric.replace("_", " "), "rounds", "seconds"):
            table.add_column(escape(name), overflow="fold")
        count: Counter[str] = Counter()
        for row in self.ranked():
            count[row["method"]] += 1
            if count[row["method"]] > SHOWN:
                continue
            first = count[row["method"]] == 1 and row[self.metric] is not None
            # one column however many keys: each method has few of them
            setting = ", ".join(f"{key} {_written(row[key])}" for key in keys if row[key] is not None)
            table.add_row(
                row["method"], str(row["trial"]), escape(setting), _reached(row, self.metric), row["rounds"],
                f"{row['seconds']:.1f}", style="bold green" if first else "",
            )  # fmt: skip
        return table

    def _fixed(self) -> set[str]:
        return {"method", "trial", self.metric, "std", "rounds", "seconds", "failed"}


def _reached(row: dict[str, Any], metric: str) -> str:
    if row[metric] is None:
        return f"[yellow]failed[/]: {escape(row['failed'])}"
    return f"{row[metric]:.4f}" + ("" if row["std"] is None else f" ± {row['std']:.4f}")


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
