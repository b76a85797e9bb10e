"""What an experiment gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from coterie.runs import newcomers_table, result_table


@dataclass(frozen=True)
class Result:
    """What an experiment gave.

    Attributes
    ----------
    directory : Path
        The run directory.
    rows : list of dict
        One row a system, as in ``summary.json``.
    name : str
        The experiment's name.
    diverged : tuple of str
        Runs in which every client failed; their rounds before that are kept.
    newcomers : list of dict
        One row a system and a way of joining, as in ``newcomers/summary.json``; empty where nobody was held out.
    remarks : tuple of str
        What could not be done for newcomers, and why.
    """

    directory: Path
    rows: list[dict[str, Any]]
    name: str
    diverged: tuple[str, ...] = ()
    newcomers: list[dict[str, Any]] = field(default_factory=list)
    remarks: tuple[str, ...] = ()

    def table(self) -> Table:
        """The rows as a table for a terminal."""
        return result_table(self.rows, title=self.name)

    def newcomers_table(self) -> Table:
        """The rows of the newcomers as a table for a terminal."""
        return newcomers_table(self.newcomers)
