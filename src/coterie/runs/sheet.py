"""A table as texts and marks, before it becomes Markdown, LaTeX or a picture in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.runs.columns import Column, Mark, Row


@dataclass(frozen=True)
class Cell:
    """A text, and whether it is the best or the second best of its column."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True)
class Sheet:
    """A table with a heading for each column and ``notes``, whole sentences, below it; the first column is names."""

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()


def result_sheet(
    rows: Sequence[Row], columns: Sequence[Column], *, title: str = "", notes: Sequence[str] = ()
) -> Sheet:
    """Return the rows of a summary, one a system, in these columns."""
    marked = [column.marks(rows) for column in columns]
    return Sheet(
        ("System", *(column.header for column in columns)),
        tuple(
            (
                Cell(str(row["label"])),
                *(Cell(column.show(row), marks[i]) for column, marks in zip(columns, marked, strict=True)),
            )
            for i, row in enumerate(rows)
        ),
        title,
        tuple(notes),
    )
