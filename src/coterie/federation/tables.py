"""From a user's table to examples: which column is what, and how rows become inputs once they are divided."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError, CoterieWarning
from coterie.federation.dates import holds_dates
from coterie.federation.examples import Examples, Rows
from coterie.federation.federation import Task
from coterie.federation.frames import (
    FEW,
    MANY,
    Cells,
    cell_text,
    check_named,
    class_names,
    encode_target,
    numbers,
    texts,
    too_large,
)
from coterie.federation.places import Origin
from coterie.federation.preparing import Kind
from coterie.federation.schema import Schema
from coterie.federation.sides import Official, read_parts
from coterie.federation.standardising import Columns
from coterie.federation.table_options import TableOptions
from coterie.federation.weights import read_weights

if TYPE_CHECKING:
    import pandas as pd

LARGE = 30.0
"""From this root mean square on a target is worth a warning."""
LARGEST_TARGET = 1e37
"""Single precision, in which models predict, ends at 3e38."""
COARSE = 0.01
"""Rounding to single precision may change targets by so much of their deviation."""
COMMAS = re.compile(r"[+-]?[0-9]+(,[0-9]+)+(\.[0-9]+)?|[+-]?[0-9]+(\.[0-9]+)*,[0-9]+")
"""Numbers with a decimal comma, or with commas or points between thousands."""


def examples_of(
    name: str,
    table: pd.DataFrame,
    clients: Sequence[str],
    options: TableOptions,
    *,
    where: Origin,
    besides: Sequence[str] = (),
) -> Examples:
    """The rows of a table as examples, which become inputs when it is known which of them are for training.

    Args:
        name: name of the source.
        table: from `read_frame`, ``N`` rows.
        clients: whose each row is, ``(N,)``.
        options: what the columns are.
        where: says where a row is, for messages.
        besides: columns that are no features, since they name the client.

    Raises:
        CoterieError: a column that is not there or is not what it should be; the message names it and the row.
    """
    columns, targets = columns_of(table, options, where=where, besides=besides)
    task: Task = "regression" if columns.classes is None else "classification"
    return Examples(
        name,
        torch.zeros(len(table), 0),
        torch.from_numpy(targets),
        classes=len(columns.labels) if task == "classification" else len(options.targets),
        task=task,
        groups={"client": clients},
        prepare=columns.prepared,
        **about_rows(table, options, where, np.arange(len(table))),
    )


def about_rows(table: pd.DataFrame, options: TableOptions, where: Origin, rows: Rows) -> dict[str, Any]:
    """What columns say of how these rows of a table are split and weighed, by the names that `Examples` has for it.

    Raises:
        CoterieError: a value that is missing or is not what it should be.
    """
    split, group = options.split, options.group
    parts = None if split is None else read_parts(full_texts(table, split, "split", where).tolist(), where)
    return {
        "sides": None if parts is None else Official(parts[rows]),
        "blocks": None if group is None else full_texts(table, group, "group", where)[rows].tolist(),
        "order": None if options.time is None else times(table, options.time, where)[rows].tolist(),
        "weights": None if options.weights is None else read_weights(table, options.weights, where)[rows],
    }


def columns_of(
    table: pd.DataFrame, options: TableOptions, *, where: Origin, besides: Sequence[str] = ()
) -> tuple[Columns, NDArray[Any]]:
    """The columns of a table, and its targets: classes ``(N,)``, or numbers ``(N, t)`` of a regression.

    Args:
        table, options, where, besides: as for `examples_of`.

    Raises:
        CoterieError: as `examples_of`.
    """
    require_named(table, options, where)
    roles = {*besides, *options.targets, options.weights, options.split, options.group, options.time}
    features = options.features or [column for column in table.columns if column not in {*roles, *options.ignore}]
    if not features:
        raise CoterieError(f"{where(0).split(',')[0]} has no column left to predict from: list fewer under ignore.")
    check_named(features, where.name)
    if clash := [column for column in features if column in {*options.targets, *besides, options.weights}]:
        role = "weighs the rows" if clash[0] == options.weights else "is the target or names the client"
        raise CoterieError(f"federation.features lists {clash[0]!r}, which {role}: leave it out.")
    kinds, cells = _columns(table, features, options, where)
    task, labels, targets = _targets(table, options, where)
    scaled = task == "regression" and options.scaled
    if options.standardise_targets is True and not scaled:
        raise CoterieError(
            f"federation.standardise_targets: the target {options.targets[0]!r} is a class: leave it out, or say "
            "task: regression."
        )
    columns = Columns(
        cells=cells,
        kinds=kinds,
        declared=options.categorical if isinstance(options.categorical, dict) else {},
        target=options.target,
        labels=labels,
        classes=targets if task == "classification" else None,
        settled=options.labels is not None or options.classes is not None,
        numbers={name: numbers(table[name]) for name in options.targets} if scaled else {},
        missing=options.missing,
        preprocessing=options.preprocessing,
        where=where,
    )
    return columns, targets


def require(table: pd.DataFrame, column: str, key: str, where: Origin) -> None:
    """Raise CoterieError where a table lacks a column that ``federation.<key>`` names; the nearest one is suggested."""
    if column not in table.columns:
        near = difflib.get_close_matches(column, list(table.columns), n=1, cutoff=0.5)
        few = ", ".join(table.columns[:8]) + (", ..." if len(table.columns) > 8 else "")
        hint = f"did you mean {near[0]!r}?" if near else f"its columns are {few}."
        raise CoterieError(f"{where.name} has no column {column!r} (federation.{key}): {hint}")


def require_named(table: pd.DataFrame, options: TableOptions, where: Origin) -> None:
    """Raise CoterieError where a table lacks a column that an option names."""
    for key, column in _named(options):
        require(table, column, key, where)


def full_texts(table: pd.DataFrame, column: str, key: str, where: Origin) -> NDArray[Any]:
    """A column that every row has, as texts ``(N,)``; raises CoterieError for the first row that lacks it."""
    cells = texts(table[column])
    if cells.missing.any():
        first = int(cells.missing.argmax())
        raise CoterieError(
            f"{where(first)}: the column {column!r} (federation.{key}) is empty, as in {int(cells.missing.sum())} of "
            f"{len(table)} rows: fill it in, or remove these rows."
        )
    return cells.values


def _named(options: TableOptions) -> Iterator[tuple[str, str]]:
    """Every column that an option names, with the key."""
    for key in ("target", "features", "categorical", "ignore", "weights", "split", "group", "time"):
        value = getattr(options, key)
        for column in [value] if isinstance(value, str) else value or []:
            yield key, column


def _columns(
    table: pd.DataFrame, features: Sequence[str], options: TableOptions, where: Origin
) -> tuple[dict[str, Kind], dict[str, Cells]]:
    """What each feature is, and its values."""
    kinds: dict[str, Kind] = {}
    cells: dict[str, Cells] = {}
    for name in features:
        kinds[name] = "category" if name in options.categorical else _kind(table[name], name, where)
        cells[name] = texts(table[name]) if kinds[name] == "category" else numbers(table[name])
        if kinds[name] == "number" and (huge := too_large(cells[name])).any():
            first = int(huge.argmax())
            raise CoterieError(
                f"{where(first)}: {table[name].iloc[first]} in the column {name!r} is too large to compute with: "
                "correct it, or put the column under ignore."
            )
        if options.missing == "error" and (gaps := cells[name].missing).any():
            raise CoterieError(
                f"{where(int(gaps.argmax()))}: the column {name!r} has no value, as in {int(gaps.sum())} of "
                f"{len(gaps)} rows: fill it in, put the column under ignore, or say missing: mark or mean."
            )
    return kinds, cells


def _kind(column: pd.Series[Any], name: str, where: Origin) -> Kind:
    """Numbers, or categories; mostly numbers with some texts are a mistake."""
    cells = numbers(column)
    there = ~cells.missing
    if (column.dtype.kind == "M" or cells.wrong.any()) and holds_dates(column[there]):
        first = int(there.argmax())
        raise CoterieError(
            f"{where(first)}: {column.iloc[first]!s} in the column {name!r} is a date, as all of its values are: list "
            f"it under ignore, say time: {name} to split rows by it, or list it under categorical to use each date as "
            "a category."
        )
    if not cells.wrong.any():
        return "number"
    first = int(cells.wrong.argmax())
    if 2 * cells.wrong.sum() < there.sum():
        raise CoterieError(
            f"{where(first)}: {cell_text(column.iloc[first])} in the column {name!r}, which holds numbers elsewhere: "
            "correct it, or list the column under categorical."
        )
    if np.isinf(cells.values[cells.wrong]).all():
        raise CoterieError(
            f"{where(first)}: {cell_text(column.iloc[first])} in the column {name!r} is no number to compute with: "
            "correct it, or leave it empty."
        )
    if all(COMMAS.fullmatch(str(value).strip()) for value in column[cells.wrong]):
        raise CoterieError(
            f"{where(first)}: {cell_text(column.iloc[first])} in the column {name!r} seems to be a number: write a "
            "point for the decimals and nothing between thousands, or list the column under categorical."
        )
    if (different := len(set(texts(column).values[there]))) > MANY:
        raise CoterieError(
            f"{where(first)}: the column {name!r} holds {different} different texts, too many for a category: list it "
            "under ignore or, to use it all the same, under categorical."
        )
    return "category"


def _targets(table: pd.DataFrame, options: TableOptions, where: Origin) -> tuple[Task, list[str], NDArray[Any]]:
    """Task, names of the classes, and targets: classes ``(N,)`` or numbers ``(N, t)``."""
    for name in options.targets:
        full_texts(table, name, "target", where)
    labels = _labels(table, options)
    if labels is None:
        for name in options.targets:
            if (wrong := numbers(table[name]).wrong).any():
                first = int(wrong.argmax())
                raise CoterieError(
                    f"{where(first)}: the target {name!r} is {cell_text(table[name].iloc[first])}, which is no number: "
                    "correct it, or say task: classification."
                )
            _check_single(table, name, where)
        schema = Schema(task="regression", classes=len(options.targets), target=options.target, shape=[1])
        targets = encode_target(table, schema)
        if not options.scaled:
            _warn_of_large(targets, options)
        return "regression", [], targets
    name = options.targets[0]
    if len(labels) < 2:
        raise CoterieError(
            f"The target {name!r} is {labels[0]!r} in every row, so there is nothing to predict: choose another "
            "target, or list all classes under labels."
        )
    targets = encode_target(table, Schema(classes=len(labels), labels=labels, target=name, shape=[1]))
    if (outside := targets < 0).any():
        first = int(outside.argmax())
        raise CoterieError(
            f"{where(first)}: the target {name!r} is {cell_text(table[name].iloc[first])}, which is none of the "
            f"classes {', '.join(labels[:10])}: correct it, or the labels."
        )
    return "classification", labels, targets


def _check_single(table: pd.DataFrame, name: str, where: Origin) -> None:
    """Models compute in single precision, which targets must fit and which must tell them apart."""
    values = numbers(table[name]).values
    if (huge := np.abs(values) > LARGEST_TARGET).any():
        first = int(huge.argmax())
        raise CoterieError(
            f"{where(first)}: {table[name].iloc[first]!s} in the target {name!r} is too large to compute with: correct "
            "it, or choose a larger unit."
        )
    if (values - values.astype(np.float32)).std() > COARSE * values.std():
        raise CoterieError(
            f"The target {name!r}, from {values.min():.17g} to {values.max():.17g}, varies too little for the single "
            "precision in which models compute: subtract a constant in the middle of it, or choose a smaller unit."
        )


def _warn_of_large(targets: NDArray[Any], options: TableOptions) -> None:
    """One warning for targets ``(N, t)`` so large that steps of gradients are, too: they stay as they are."""
    sizes = np.sqrt((targets.astype(np.float64) ** 2).mean(axis=0))
    largest = int(sizes.argmax())
    if sizes[largest] > LARGE:
        unit = 10 ** int(np.log10(sizes[largest]))
        none = options.preprocessing == "none"
        remedy = "preprocessing: federated, which standardises targets" if none else "standardise_targets: true"
        warnings.warn(
            f"The target {options.targets[largest]!r} is about {sizes[largest]:,.0f} large, and targets are used as "
            f"they are: training may be slow or diverge. Say {remedy}, or divide it beforehand, such as by "
            f"{unit:,}.",
            CoterieWarning,
            stacklevel=2,
        )


def _labels(table: pd.DataFrame, options: TableOptions) -> list[str] | None:
    """The classes in order; None where numbers are to be predicted."""
    if isinstance(options.target, list) or options.task == "regression":
        return None
    if options.labels is not None:
        return list(options.labels)
    if options.classes is not None:
        return [str(c) for c in range(options.classes)]
    column = table[options.target]
    cells = numbers(column)
    numeric = cells.values[~cells.wrong]
    if options.task is None and 2 * cells.wrong.sum() < len(cells.wrong) and len(np.unique(numeric)) > FEW:
        return None  # numbers, where the few texts among them are mistakes
    return class_names(column, options.task)


def times(table: pd.DataFrame, column: str, where: Origin) -> NDArray[np.float64]:
    """The time of every row ``(N,)``, a number or a date in seconds; raises CoterieError where one lacks it."""
    full_texts(table, column, "time", where)
    return _times(table[column], column, where)


def _times(column: pd.Series[Any], name: str, where: Origin) -> NDArray[np.float64]:
    """Numbers, or dates as seconds."""
    import pandas as pd

    cells = numbers(column)
    if column.dtype.kind != "M" and not cells.wrong.any():
        return cells.values
    dates = pd.to_datetime(column, errors="coerce", format=None if column.dtype.kind == "M" else "ISO8601", utc=True)
    if dates.isna().any():
        first = int(dates.isna().to_numpy().argmax())
        raise CoterieError(
            f"{where(first)}: {cell_text(column.iloc[first])} in the column {name!r} (federation.time) is neither a "
            "number nor a date such as 2024-05-31: correct it."
        )
    return np.asarray((dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), dtype=np.float64)
