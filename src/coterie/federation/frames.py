"""A user's table: reading it, guessing its columns, and encoding them as a schema says."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.dates import holds_dates
from coterie.federation.federation import Task
from coterie.federation.schema import Feature, Schema, plain

if TYPE_CHECKING:
    import pandas as pd

ABSENT = frozenset({"", "na", "n/a", "nan", "null", "?"})
"""Texts that stand for a missing value, in small letters."""
MANY = 100
"""A text column with more values than this is no category."""
FEW = 20
"""A target of whole numbers is a class where it has at most so many values."""
CONSTANT = 1e-12
"""A number whose spread is that small beside its mean is the same everywhere, but for rounding."""
LARGEST = 1e150
"""Larger numbers have no square."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """One column.

    Attributes:
        values: ``(n,)``; float64 with NaN, or texts.
        missing: ``(n,)``, where there is no value.
        wrong: ``(n,)``, where a number is expected and there is none.
    """

    values: NDArray[Any]
    missing: Mask
    wrong: Mask

    def take(self, rows: NDArray[np.int64]) -> Cells:
        """The same column for some rows, in this order."""
        return Cells(self.values[rows], self.missing[rows], self.wrong[rows])


def read_frame(path: Path) -> pd.DataFrame:
    """A table with a header: ``.csv`` (also compressed, ``.csv.gz``), whose values stay text, or ``.parquet``.

    Raises:
        CoterieError: no such file, no table, no row, or a column that is there twice.
    """
    import pandas as pd

    if not path.is_file():
        raise CoterieError(f"there is no table {path}.")
    try:
        if path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
        else:
            # without a header, since pandas would rename a column that is there twice
            raw = pd.read_csv(path, dtype=str, keep_default_na=False, header=None, skipinitialspace=True)
            table = raw.iloc[1:].reset_index(drop=True)
            table.columns = raw.iloc[0].fillna("").str.strip().tolist()
            _check_lengths(path, list(table.columns))
    # pandas reports empty and malformed files by kinds of ValueError
    except (OSError, EOFError, ValueError, ImportError, zlib.error, csv.Error) as error:
        raise CoterieError(f"{path} cannot be read as a table: {_reason(error)}.") from error
    return checked_frame(table, path)


def _check_lengths(path: Path, header: Sequence[str]) -> None:
    """Raise CoterieError for a line that ends before the named columns do: which of its cells is lost is unknown.

    pandas fills up such a line with empty cells, which look like missing values.
    """
    wanted = max((i for i, name in enumerate(header, 1) if name), default=0)
    if (ending := path.suffix.lower()) not in (".csv", ".gz"):
        return
    with (gzip.open if ending == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines, skipinitialspace=True)
        for cells in reader:
            if len(cells) < wanted and any(cells):
                raise CoterieError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells where {wanted} are expected: write empty "
                    "cells between commas."
                )


def checked_frame(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A table with rows, whose columns have texts as names.

    A nameless column without any value, as a comma at the end of every line makes, is left out.

    Raises:
        CoterieError: a column is there twice, or cells are not between commas.
    """
    nameless = [not str(name).strip() for name in table.columns]
    table = table.loc[:, [not bare or not _missing(table.iloc[:, i]).all() for i, bare in enumerate(nameless)]]
    names = [str(name) for name in table.columns]
    if len(names) == 1 and (sign := next((sign for sign in ";\t|" if sign in names[0]), None)):
        seen = {"\t": "tabs"}.get(sign, f"{sign!r}")
        raise CoterieError(f"{path} has {seen} between its cells: save it with commas, or as .parquet.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise CoterieError(f"{path} has the column {twice[0]!r} twice: rename one.")
    if table.empty:
        raise CoterieError(f"{path} has no rows: check the file.")
    return table.set_axis(names, axis=1)


def check_named(features: Sequence[str], where: object) -> None:
    """Raise CoterieError for a feature without a name, mostly numbers of rows that are nothing to learn from."""
    if any(not name.strip() for name in features):
        raise CoterieError(f"{where} has a column without a name: give it one, or remove it.")


def _reason(error: Exception) -> str:
    """Why a file is no table, in a sentence that holds nothing of it."""
    from pandas.errors import EmptyDataError, ParserError

    if isinstance(error, EmptyDataError):
        return "it is empty"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text; save it as CSV in UTF-8, or as .parquet"
    if isinstance(error, ParserError):
        line = re.search(r"in line (\d+)|starting at row (\d+)", str(error))
        where = "" if line is None else f" in line {line[1] or int(line[2]) + 1}"
        what = "a quotation mark is never closed" if "inside string" in str(error) else "it has more cells than before"
        return f"{what}{where}" if line is not None else "its lines are not cells between commas"
    return f"{type(error).__name__}; check the file"


def numbers(column: pd.Series[Any]) -> Cells:
    """A column as numbers; what is no finite number is ``wrong``."""
    import pandas as pd

    if column.dtype.kind == "b":  # as in a .csv file, where true and false are texts
        column = column.astype(str)
    missing = _missing(column)
    values = pd.to_numeric(column.where(~missing), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong: Mask = ~missing & ~np.isfinite(values)
    return Cells(values, missing, wrong)


def cell_text(value: Any) -> str:
    """A cell as messages quote it: texts in quotation marks, numbers of any library as they are written."""
    return repr(value) if isinstance(value, str) else str(value)


def too_large(cells: Cells) -> Mask:
    """Where numbers are so large that nothing can be computed with them, ``(n,)``: their squares are infinite."""
    huge: Mask = np.abs(cells.values) > LARGEST
    return huge


def texts(column: pd.Series[Any]) -> Cells:
    """A column as texts, see `plain`."""
    missing = _missing(column)
    if column.dtype == object:  # lists and the like have no order and no hash
        column = column.map(str)
    distinct = {value: plain(value) for value in column[~missing].unique()}
    values = np.array(
        ["" if gone else distinct[cell] for cell, gone in zip(column, missing, strict=True)], dtype=object
    )
    return Cells(values, missing, np.zeros(len(values), dtype=bool))


def infer_schema(
    table: pd.DataFrame,
    target: str,
    features: Sequence[str] | None = None,
    *,
    task: Task | None = None,
    missing: Literal["error", "mark"] = "error",
    standardise: bool = False,
) -> Schema:
    """What the columns of a table seem to be: numbers, or categories with the values that occur.

    Args:
        table: from `read_frame`.
        target: the column to predict.
        features: the columns to predict it from; left out, all others.
        task: left out, a target of texts, or of at most 20 different whole numbers, is a class.
        missing: ``mark`` the columns that lack values, instead of refusing them.
        standardise: store mean and standard deviation of each number; otherwise they are 0 and 1, so that nothing of
            the data is in the schema but names.

    Raises:
        CoterieError: no such column, a missing value, dates, or a text column that is no category.
    """
    names = list(features) if features is not None else [name for name in table.columns if name != target]
    check_named(names, "the table")
    for name in [target, *names]:
        if name not in table.columns:
            raise CoterieError(f"there is no column {name!r}: the columns are {', '.join(table.columns)}.")
    labels = None if task == "regression" else class_names(table[target], task)
    found = [_feature(table[name], name, missing, standardise) for name in names]
    if labels is None:
        return Schema(task="regression", classes=1, target=target, features=found)
    return Schema(classes=len(labels), labels=labels, target=target, features=found)


def encode(table: pd.DataFrame, features: Sequence[Feature]) -> NDArray[np.float32]:
    """The features of a table as inputs, ``(n, d)``: first all of them in order, then where they are missing.

    The table fits: numbers are numbers, categories have listed values, and nothing is missing that may not be.
    """
    return encode_cells({feature.name: cells_of(table, feature) for feature in features}, features)


def cells_of(table: pd.DataFrame, feature: Feature) -> Cells:
    """The column of a feature, read as what it is."""
    return numbers(table[feature.name]) if feature.kind == "number" else texts(table[feature.name])


def encode_cells(columns: Mapping[str, Cells], features: Sequence[Feature]) -> NDArray[np.float32]:
    """The same as `encode`, for columns that were read before."""
    inputs: list[NDArray[Any]] = []
    marks: list[NDArray[Any]] = []
    for feature in features:
        cells = columns[feature.name]
        if feature.kind == "number":
            inputs.append(np.where(cells.missing, 0.0, (cells.values - feature.mean) / feature.std))
        else:
            inputs += [cells.values == value for value in feature.values]
        if feature.missing:
            marks.append(cells.missing)
    return np.stack([*inputs, *marks], axis=1).astype(np.float32)


def encode_target(table: pd.DataFrame, schema: Schema) -> NDArray[Any]:
    """The target of a table: classes ``(n,)`` int64, -1 where it is none of them, or numbers ``(n, t)`` float32."""
    if schema.task == "regression":
        return np.stack([numbers(table[name]).values for name in schema.targets], axis=1).astype(np.float32)
    column = table[schema.targets[0]]
    classes = {label: c for c, label in enumerate(schema.label_names)}
    return np.array([classes.get(value, -1) for value in texts(column).values], dtype=np.int64)


def _missing(column: pd.Series[Any]) -> Mask:
    gone = column.isna()
    if column.dtype.kind not in "biuf":
        gone |= column.astype(str).str.strip().str.lower().isin(ABSENT)
    return gone.to_numpy(bool)


def class_names(column: pd.Series[Any], task: Task | None) -> list[str] | None:
    """The classes that a target column holds, in order; None where it is a number.

    Raises:
        CoterieError: it is missing somewhere.
    """
    as_numbers, values = numbers(column), texts(column)
    if values.missing.any():
        raise CoterieError(f"the target {column.name!r} is missing in {int(values.missing.sum())} rows: remove them.")
    if as_numbers.wrong.any():
        return sorted(set(values.values))
    distinct = np.unique(as_numbers.values)
    if task is None and (len(distinct) > FEW or (distinct % 1 != 0).any()):
        return None
    return sorted(set(values.values), key=lambda label: (float(label), label))


def _feature(column: pd.Series[Any], name: str, missing: str, standardise: bool) -> Feature:
    cells = numbers(column)
    gaps = bool(cells.missing.any())
    if gaps and missing == "error":
        raise CoterieError(
            f"the column {name!r} lacks values in {int(cells.missing.sum())} rows: fill them in, remove the column, or "
            "say missing: mark."
        )
    if (column.dtype.kind == "M" or cells.wrong.any()) and holds_dates(column[~cells.missing]):
        raise CoterieError(
            f"the column {name!r} holds dates: leave it out of features, or turn it into numbers, such as of days."
        )
    if cells.wrong.any():
        values = sorted(set(texts(column).values[~cells.missing]))
        if len(values) > MANY:
            raise CoterieError(
                f"the column {name!r} holds {len(values)} different texts, too many for a category: leave it out of "
                "features."
            )
        return Feature(name=name, kind="category", values=values, missing=gaps)
    known = cells.values[~cells.missing]
    if not standardise or len(known) == 0:
        return Feature(name=name, missing=gaps)
    mean, spread = float(known.mean()), float(known.std())
    return Feature(name=name, mean=mean, std=spread if spread > CONSTANT * abs(mean) else 1.0, missing=gaps)
