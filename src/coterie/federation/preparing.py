"""Preprocessing without pooling data: each client sums up its own training rows, and the sums are combined.

A summary holds, of a number, how many there are, their sum, the sum of squares about their own mean and how many are
missing; of a category, which values occur and how many are missing. No row leaves a client.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from coterie.federation.frames import CONSTANT, LARGEST, Cells, numbers
from coterie.federation.schema import Feature, Schema

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "category"]
Missing = Literal["error", "mark", "mean"]


@dataclass(frozen=True)
class Numbers:
    """A column of numbers at one client, or at several.

    Attributes:
        count: values that are there.
        total: their sum.
        squares: sum of the squares of their differences from their mean.
        missing: rows without a value.
    """

    count: int
    total: float
    squares: float
    missing: int

    @property
    def mean(self) -> float:
        """Mean of the values; 0 where there is none."""
        return self.total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the values; 1 where they are all the same or there is none."""
        spread = math.sqrt(self.squares / self.count) if self.count else 0.0
        return spread if spread > CONSTANT * abs(self.mean) else 1.0


@dataclass(frozen=True)
class Values:
    """A column of categories: the values that occur, in alphabetical order, and the rows without one."""

    values: tuple[str, ...]
    missing: int


Summary = Mapping[str, Numbers | Values]


def summary_of(columns: Mapping[str, Cells], kinds: Mapping[str, Kind]) -> Summary:
    """Sum up the rows of one client.

    Args:
        columns: by name, ``(n,)`` each; they fit their kind.
        kinds: what each column to sum up is.
    """
    return {
        name: _numbers(columns[name]) if kind == "number" else _values(columns[name]) for name, kind in kinds.items()
    }


def combined(summaries: Sequence[Summary]) -> Summary:
    """The summary of all rows, from those of the clients, which have the same columns; none of their rows is needed."""
    return {name: _joined([summary[name] for summary in summaries]) for name in summaries[0]}


def features_of(summary: Summary, missing: Missing) -> list[Feature]:
    """How the columns of a summary become inputs: numbers standardised, and an input for each value of a category.

    ``missing: mark`` gives a further input to what is missing in the rows summed up. Elsewhere, and under ``mean``,
    a missing number counts as the mean and a missing category as none of the values.
    """
    found = []
    for name, part in summary.items():
        marked = missing == "mark" and part.missing > 0
        common: dict[str, Any] = {"name": name, "missing": marked, "impute": missing != "error" and not marked}
        if isinstance(part, Numbers):
            found.append(Feature(mean=part.mean, std=part.std, **common))
        else:
            found.append(Feature(kind="category", values=list(part.values), **common))
    return found


def by_own_numbers(schema: Schema, summary: Summary) -> Schema:
    """The inputs of a schema, with numbers standardised by the rows of one client.

    A column of which these have no number becomes 0 throughout: as it stands, a later number would reach a model that
    never saw any in other units than those of all others.
    """
    features = []
    for feature in schema.features or []:
        part = summary.get(feature.name)
        if feature.kind == "number" and isinstance(part, Numbers):
            own = {"mean": part.mean, "std": part.std if part.count else LARGEST}
            feature = feature.model_copy(update=own)
        features.append(feature)
    return schema.model_copy(update={"features": features})


def standardised(schema: Schema, table: pd.DataFrame) -> Schema:
    """The inputs of a schema, with numbers standardised by the rows of one client's ``table``."""
    columns, kinds = dict[str, Cells](), dict[str, Kind]()
    for feature in schema.features or []:
        if feature.kind == "number":
            found = numbers(table[feature.name])
            columns[feature.name] = Cells(found.values, found.missing | found.wrong, found.wrong)
            kinds[feature.name] = "number"
    return by_own_numbers(schema, summary_of(columns, kinds))


def without_few(columns: Mapping[str, Cells], summary: Summary, least: int) -> Summary:
    """A summary of these rows that tells of no category and of no sum that fewer than ``least`` of them have part in.

    What is withheld does not count as missing.
    """
    if least <= 1:
        return summary
    kept: dict[str, Numbers | Values] = {}
    for name, part in summary.items():
        if isinstance(part, Numbers):
            kept[name] = part if part.count >= least else Numbers(0, 0.0, 0.0, part.missing)
        else:
            often = Counter(columns[name].values.tolist())
            kept[name] = Values(tuple(value for value in part.values if often[value] >= least), part.missing)
    return kept


def without_statistics(summary: Summary) -> dict[str, Any]:
    """What must be agreed on so that all clients have the same inputs: values of categories, and what is missing."""
    return {
        name: [part.missing > 0] if isinstance(part, Numbers) else [list(part.values), part.missing > 0]
        for name, part in summary.items()
    }


def as_sent(summary: Summary) -> dict[str, Any]:
    """A summary as plain data."""
    return {
        name: [part.count, part.total, part.squares, part.missing]
        if isinstance(part, Numbers)
        else [list(part.values), part.missing]
        for name, part in summary.items()
    }


def size_of(content: Any) -> int:
    """Bytes of plain data on the wire, as compact JSON."""
    return len(json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())


def _numbers(cells: Cells) -> Numbers:
    known = cells.values[~cells.missing]
    if len(known) == 0:
        return Numbers(0, 0.0, 0.0, len(cells.missing))
    # exactly rounded sums, so that they do not depend on the machine
    total = math.fsum(known)
    squares = math.fsum((known - total / len(known)) ** 2)
    return Numbers(len(known), total, squares, int(cells.missing.sum()))


def _values(cells: Cells) -> Values:
    return Values(tuple(sorted(set(cells.values[~cells.missing].tolist()))), int(cells.missing.sum()))


def _joined(parts: Sequence[Numbers | Values]) -> Numbers | Values:
    missing = sum(part.missing for part in parts)
    numbers = [part for part in parts if isinstance(part, Numbers) and part.count]
    if not isinstance(parts[0], Numbers):
        values = {value for part in parts if isinstance(part, Values) for value in part.values}
        return Values(tuple(sorted(values)), missing)
    count, total = sum(part.count for part in numbers), math.fsum(part.total for part in numbers)
    mean = total / count if count else 0.0
    # squares about the common mean: those about each own mean, and how far the means are apart
    apart = [part.count * (part.mean - mean) ** 2 for part in numbers]
    return Numbers(count, total, math.fsum([*(part.squares for part in numbers), *apart]), missing)
