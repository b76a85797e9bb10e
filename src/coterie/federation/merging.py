"""What sites have told of their tables, made one: each summary is looked at before it is believed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation.frames import MANY
from coterie.federation.places import Origin
from coterie.federation.preparing import Kind, Numbers, Summary, Values
from coterie.federation.schema import Schema, plain
from coterie.federation.standardising import Columns
from coterie.federation.table_options import TableOptions

LARGEST_MEAN = 1e140
"""A larger one has no square that can be summed up over all rows of all sites."""
LARGEST_SQUARES = 1e300
"""Of the sum of squares of one site, likewise."""
LONGEST = 1000
"""Characters of the name of a column or of a category."""

Shape = TypeVar("Shape", bound=Hashable)


def received(content: Any, rows: int) -> Summary:
    """A summary as it came from a site, which has ``rows`` training rows.

    Raises:
        CoterieError: it cannot be true, or is no summary; one sentence that goes on from the site's name.
    """
    if not isinstance(content, Mapping) or not content:
        raise CoterieError("it sent no summary of columns")
    return {_name(name): _part(name, part, rows) for name, part in content.items()}


def merged(summaries: Mapping[str, Summary], options: TableOptions) -> tuple[Schema, dict[str, str]]:
    """The schema of all sites together, and by name why the summary of a site is not in it.

    What most sites have holds: their columns, and whether a column has numbers or categories. Where as many have one as
    another, that of the site which comes first holds.

    Args:
        summaries: by site, in the order of the federation.
        options: what is said of the columns beforehand.

    Raises:
        CoterieError: there is no summary, or a column of categories has no value anywhere.
    """
    if not summaries:
        raise CoterieError("no site has sent what preprocessing: federated needs")
    numbers = not (options.labels or options.classes)
    scaled = options.targets if numbers and options.scaled else []
    targets, odd = {}, {}
    for name, own in summaries.items():
        targets[name] = {target: own[target] for target in scaled if isinstance(own.get(target), Numbers)}
        if lacking := [target for target in scaled if target not in targets[name]]:
            odd[name] = f"it has sent no sum of its target {lacking[0]!r}"
    summaries = {
        name: {column: part for column, part in own.items() if column not in scaled}
        for name, own in summaries.items()
        if name not in odd
    }
    if not summaries:
        raise CoterieError(f"no site has sent the sums of its target: {next(iter(odd.values()))}")
    columns = frozenset(options.features) if options.features else _most([frozenset(own) for own in summaries.values()])
    odd |= {name: _other_columns(own, columns, options) for name, own in summaries.items() if own.keys() != columns}
    left = {name: own for name, own in summaries.items() if name not in odd}
    if not left:
        raise CoterieError(f"no site has the columns of federation.features: {next(iter(odd.values()))}")
    order = options.features or list(next(iter(left.values())))
    kinds = {column: _kind([own[column] for own in left.values()], column in options.categorical) for column in order}
    for name, own in left.items():
        for column in order:
            count = len(part.values) if isinstance(part := own[column], Values) else 0
            if count > MANY and column not in options.categorical:
                odd[name] = f"the column {column!r} has {count} categories there: list it under federation.categorical"
                break
            if (its := _kind_of(own[column])) not in (None, kinds[column]):
                odd[name] = (
                    f"the column {column!r} holds {_PLURAL[its]} there, but {_PLURAL[kinds[column]]} elsewhere: "
                    "correct it there, or list it under federation.categorical"
                )
                break
    whole = {
        name: {column: _as(kinds[column], own[column]) for column in order}
        for name, own in left.items()
        if name not in odd
    }
    if not whole:
        raise CoterieError(f"no two sites have like columns, so nothing can be summed up: {next(iter(odd.values()))}")
    schema = _columns(kinds, options).agreed(list(whole.values()), [targets[name] for name in whole])
    return schema, odd


def _columns(kinds: Mapping[str, Kind], options: TableOptions) -> Columns:
    """The columns without a table."""
    labels = options.labels or [str(c) for c in range(options.classes or 0)]
    return Columns(
        cells={}, kinds=kinds, declared=options.categorical if isinstance(options.categorical, dict) else {},
        numbers={}, target=options.target, labels=labels, classes=np.zeros(0, dtype=np.int64) if labels else None,
        settled=True, missing=options.missing, preprocessing="federated",
        where=Origin("the sites", [("the sites", "row", 1)]),
    )  # fmt: skip


_PLURAL: Mapping[str | None, str] = {"number": "numbers", "category": "categories"}


def _kind_of(part: Numbers | Values) -> Kind | None:
    """What a site's column is; None where it has no value that would tell."""
    if isinstance(part, Numbers):
        return "number" if part.count else None
    return "category" if part.values else None


def _kind(parts: Sequence[Numbers | Values], declared: bool) -> Kind:
    """What a column is at most sites."""
    if declared:
        return "category"
    known = [kind for part in parts if (kind := _kind_of(part)) is not None]
    return _most(known or ["number" if isinstance(part, Numbers) else "category" for part in parts])


def _as(kind: Kind, part: Numbers | Values) -> Numbers | Values:
    """A column without a value, as what it is elsewhere."""
    if kind == "number":
        return part if isinstance(part, Numbers) else Numbers(0, 0.0, 0.0, part.missing)
    return part if isinstance(part, Values) else Values((), part.missing)


def _most(shapes: Sequence[Shape]) -> Shape:
    """The most frequent, of several the first."""
    return Counter(shapes).most_common(1)[0][0]


def _other_columns(own: Summary, columns: frozenset[str], options: TableOptions) -> str:
    whose = "federation.features lists" if options.features else "most sites have"
    if lacking := sorted(columns - own.keys()):
        return f"it has no column {lacking[0]!r}, which {whose}"
    spare = min(own.keys() - columns)
    return f"it has a column {spare!r} beside those that {whose}: leave it out, or list it under federation.ignore"


def _name(name: Any) -> str:
    if not _is_text(name):
        raise CoterieError(f"it has a column whose name is empty, longer than {LONGEST} characters or no text")
    return str(name)


def _part(name: str, part: Any, rows: int) -> Numbers | Values:
    """A column's summary, once it makes sense."""
    where = f"its summary of the column {name!r}"
    if isinstance(part, list) and len(part) == 4:
        return _numbers(where, part, rows)
    if isinstance(part, list) and len(part) == 2 and isinstance(part[0], list):
        return _values(where, part[0], part[1], rows)
    raise CoterieError(f"{where} is neither one of numbers nor one of categories")


def _numbers(where: str, part: Sequence[Any], rows: int) -> Numbers:
    count, total, squares, missing = part
    if not _is_count(count) or not _is_count(missing) or count + missing > rows:
        raise CoterieError(f"{where} counts other rows than the {rows} that it trains on")
    for value in (total, squares):
        if not (type(value) is float and math.isfinite(value)) and not (type(value) is int and abs(value) < 2**1000):
            raise CoterieError(f"{where} holds a sum that is NaN, infinite or no number")
    if squares < 0 or (count == 0 and (total or squares)):
        raise CoterieError(f"{where} holds sums that no numbers have")
    if squares > LARGEST_SQUARES or abs(total) > LARGEST_MEAN * count:
        raise CoterieError(f"{where} holds sums that are too large to compute with")
    return Numbers(count, float(total), float(squares), missing)


def _values(where: str, values: Sequence[Any], missing: Any, rows: int) -> Values:
    if not _is_count(missing) or len(values) + missing > rows:
        raise CoterieError(f"{where} has more categories and gaps than the {rows} rows that it trains on")
    named = [value for value in values if _is_text(value) and plain(value) == value]
    if len(named) < len(values) or len(set(named)) < len(named):
        raise CoterieError(f"{where} has a category that is no text, stands in it twice or is too long")
    return Values(tuple(sorted(named)), missing)


def _is_text(value: Any) -> bool:
    """Whether it is a short text that can be written down."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST and value.encode(errors="ignore").decode() == value


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
