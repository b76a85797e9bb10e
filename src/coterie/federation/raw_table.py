"""The raw columns of a new table, checked against the features that a model was trained with."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError, CoterieWarning
from coterie.federation.frames import Mask, numbers, texts
from coterie.federation.schema import Feature

if TYPE_CHECKING:
    import pandas as pd

Column = NDArray[np.float64]
TABLES = (".csv", ".csv.gz", ".parquet")
MANY = 5
"""So many unseen values of a category are named."""


def is_table(path: Path) -> bool:
    """Whether the name of a file says that it is a table."""
    return path.name.lower().endswith(TABLES)


def numbering(path: Path) -> tuple[str, int]:
    """What the rows of a table are called in messages, and the number of the first: a CSV file has a header."""
    return ("row", 1) if path.suffix.lower() == ".parquet" else ("line", 2)


def raw_columns(
    table: pd.DataFrame, features: Sequence[Feature], where: str, unit: str = "row", first: int = 1
) -> Column:
    """The features as numbers, ``(n, F)``: a category as its place among its values (-1: none), NaN where missing.

    A category that is none of the known ones is worth a warning, and so is a gap for which the mean stands.

    Args:
        table: from `read_frame`; columns that are no feature are not looked at.
        features: what the model takes.
        where, unit, first: how messages name the table and its rows, see `numbering`.

    Raises:
        CoterieError: the table does not fit; one sentence for each difference, each on a line.
    """
    wrong = list(_missing(table, features, where))
    columns = []
    for feature in features:
        if feature.name in table.columns:
            values, sentences = _column(table[feature.name], feature, f"{where}, {unit}", first)
            columns.append(values)
            wrong += sentences
    if wrong:
        raise CoterieError("\n".join(wrong))
    return np.stack(columns, axis=1)


def may_be_missing(feature: Feature) -> bool:
    """Whether a model takes a gap there: training had some, or the mean stands for them (``impute``)."""
    return feature.missing or feature.impute


def _missing(table: pd.DataFrame, features: Sequence[Feature], where: str) -> Iterator[str]:
    known = {feature.name for feature in features}
    spare = {str(name).casefold(): str(name) for name in table.columns if name not in known}
    for feature in features:
        if feature.name not in table.columns:
            near = difflib.get_close_matches(feature.name.casefold(), spare, n=1)
            hint = f"is it the one called {spare[near[0]]!r}?" if near else "the model needs it."
            yield f"{where} has no column {feature.name!r}: {hint}"


def _column(column: pd.Series[Any], feature: Feature, where: str, first: int) -> tuple[Column, list[str]]:
    """A raw column as the model takes it, ``(n,)``, and what is wrong with it; ``first`` numbers its first row."""
    wrong = []
    cells = numbers(column) if feature.kind == "number" else texts(column)
    if cells.missing.any() and not may_be_missing(feature):
        wrong.append(
            f"{where} {_row(cells.missing, first)}: {feature.name!r} is missing{_more(cells.missing)}, and the model "
            "was trained without gaps there: fill it in."
        )
    if cells.missing.any() and not feature.missing and feature.impute:
        counts = "the mean of the training rows" if feature.kind == "number" else "none of its values"
        warnings.warn(
            f"{where} {_row(cells.missing, first)}: {feature.name!r} is missing{_more(cells.missing)}: it counts as "
            f"{counts}.",
            CoterieWarning,
            stacklevel=2,
        )
    if cells.wrong.any():
        bad = str(column.iloc[int(cells.wrong.argmax())])
        where_wrong = f"{where} {_row(cells.wrong, first)}"
        wrong.append(f"{where_wrong}: {feature.name!r} should be a number, not {bad!r}{_more(cells.wrong)}.")
    if feature.kind == "number":
        with np.errstate(over="ignore"):
            huge: Mask = np.abs((cells.values - feature.mean) / feature.std) > np.finfo(np.float32).max
        if huge.any():
            wrong.append(
                f"{where} {_row(huge, first)}: {feature.name!r} is {column.iloc[int(huge.argmax())]}{_more(huge)}, "
                "which is too large to compute with: correct it."
            )
        return cells.values.astype(np.float64), wrong
    places = {value: float(place) for place, value in enumerate(feature.values)}
    values = np.array([places.get(value, -1.0) for value in cells.values], dtype=np.float64)
    unseen: Mask = (values < 0) & ~cells.missing
    if unseen.any():
        found = sorted({str(value) for value in cells.values[unseen]})
        listed = ", ".join(found[:MANY]) + (", ..." if len(found) > MANY else "")
        warnings.warn(
            f"{where} {_row(unseen, first)}: {feature.name!r} is {listed}{_more(unseen)}, which the model has never "
            "seen: it counts as none of its values.",
            CoterieWarning,
            stacklevel=2,
        )
    return np.where(cells.missing, np.nan, values), wrong


def _row(bad: Mask, first: int) -> int:
    return int(bad.argmax()) + first


def _more(bad: Mask) -> str:
    count = int(bad.sum()) - 1
    return f" (and in {count} more rows)" if count > 1 else " (and in one more row)" if count else ""
