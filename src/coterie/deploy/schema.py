"""How the data of a site differ from what every site's data must be like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import ValidationError

from coterie.config.explain import describe, explain
from coterie.deploy.reading import UNKNOWN, Found
from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation
from coterie.federation.arrays import Arrays
from coterie.federation.frames import Mask, encode_target, infer_schema, numbers, texts
from coterie.federation.schema import Feature, Schema
from coterie.runs.atomic import write_text
from coterie.yamltext import load_yaml, write_yaml

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Feature", "Schema", "differences", "infer_schema", "read_schema", "write_schema"]


def read_schema(path: Path) -> Schema:
    """Read a schema from YAML (or JSON, which is YAML).

    Raises
    ------
    CoterieError
        It cannot be read, or a key or a value is wrong; the message names it.
    """
    tree = load_yaml(path)
    if not isinstance(tree, Mapping):
        raise CoterieError(f"{path} must hold keys and values such as 'classes: 2', not {describe(tree)}.")
    try:
        return Schema.model_validate(tree)
    except ValidationError as error:
        _, sentence = explain(error, tree, Schema)
        raise CoterieError(f"{path}: {sentence}{'' if sentence.endswith('?') else '.'}") from error


def write_schema(path: Path, schema: Schema) -> None:
    """Write a schema as YAML."""
    write_text(path, write_yaml(schema.as_dict()))


def differences(schema: Schema, found: Found | Federation, features: Sequence[str] | None = None) -> list[str]:
    """What has to change before a site's data fit, one sentence each.

    Sentences name columns, categories and classes of the schema, and row numbers (a header is row 1), but no value of
    the data: they may be read by others.

    Parameters
    ----------
    schema : Schema
        What every site's data must be like.
    found : Found | Federation
        A site's data as they were read, or its federation.
    features : sequence of str, optional
        The columns that the site lists; left out, every column is looked at.
    """
    federation = found if isinstance(found, Federation) else found.federation
    if federation is not None:
        return list(_of_federation(schema, federation))
    assert isinstance(found, Found)
    of_parts = {
        **{part: _of_table(schema, table, features) for part, table in found.tables.items()},
        **{part: _of_arrays(schema, arrays) for part, arrays in found.arrays.items()},
    }
    where = {"all": "", "validation": "In the validation data: ", "test": "In the test data: "}
    return [where[part] + sentence for part, sentences in of_parts.items() for sentence in sentences]


def _of_table(schema: Schema, table: pd.DataFrame, listed: Sequence[str] | None) -> Iterator[str]:
    if schema.features is None:
        yield f"The schema has inputs of the shape {schema.input_shape}, which a table has not."
        return
    wanted = [feature.name for feature in schema.features]
    columns = [name for name in table.columns if listed is None or name in listed or name in schema.targets]
    if not set(table.columns) & {*wanted, *schema.targets}:
        yield "The table has no column of the schema: its first row must name the columns, with commas between them."
        return
    for name in wanted:
        if name not in columns:
            left = "is not among the features that the site lists" if name in table.columns else "is missing"
            yield f"The column {name!r} {left}."
    for name in columns:
        if name not in wanted and name not in schema.targets:
            yield f"The column {name!r} is not in the schema: list the features that are, or remove it."
    for feature in schema.features:
        if feature.name in columns:
            yield from _of_column(feature, table[feature.name])
    if schema.target is None:
        yield "The schema does not say which column is the target."
    elif gone := [name for name in schema.targets if name not in table.columns]:
        yield f"The target {gone[0]!r} is missing."
    else:
        yield from _of_target(schema, table)


def _of_column(feature: Feature, column: pd.Series[Any]) -> Iterator[str]:
    cells = numbers(column) if feature.kind == "number" else texts(column)
    if cells.missing.any() and not (feature.missing or feature.impute):
        yield f"The column {feature.name!r} lacks values {_rows(cells.missing)}, which the schema does not allow."
    if cells.wrong.any():
        yield f"The column {feature.name!r} should hold numbers, but does not {_rows(cells.wrong)}."
    if feature.kind == "category":
        unknown: Mask = ~cells.missing & ~np.isin(cells.values.astype(str), feature.values)
        if unknown.any():
            yield f"The column {feature.name!r} holds none of {', '.join(feature.values)} {_rows(unknown)}."


def _of_target(schema: Schema, table: pd.DataFrame) -> Iterator[str]:
    if schema.task == "regression":
        for name in schema.targets:
            cells = numbers(table[name])
            if (bad := cells.missing | cells.wrong).any():
                yield f"The target {name!r} should hold numbers, but does not {_rows(bad)}."
        return
    outside = encode_target(table, schema) == UNKNOWN
    if outside.any():
        yield f"The target {schema.target!r} is none of the classes {_named(schema.label_names)} {_rows(outside)}."


def _of_arrays(schema: Schema, data: Arrays) -> Iterator[str]:
    if len(data) == 0:
        yield "There are no examples."
        return
    if tuple(data.inputs.shape[1:]) != schema.input_shape:
        yield f"Inputs have the shape {tuple(data.inputs.shape[1:])} where {schema.input_shape} is expected."
    yield from _of_values("inputs", data.inputs)
    yield from _of_targets(schema, data.targets)


def _of_targets(schema: Schema, targets: torch.Tensor) -> Iterator[str]:
    if schema.task == "regression":
        if not targets.is_floating_point() or tuple(targets.shape[1:]) != (schema.classes,):
            yield f"Targets should be {schema.classes} numbers an example, floating point: (n, {schema.classes})."
        else:
            yield from _of_values("targets", targets)
    elif targets.is_floating_point() or targets.ndim != 1:
        yield "Targets should be whole numbers, one class an example."
    else:
        outside = ((targets < 0) | (targets >= schema.classes)).numpy()
        if outside.any():
            yield f"Targets are none of the classes {_named(schema.label_names)} {_examples(outside)}."


def _of_values(what: str, values: torch.Tensor) -> Iterator[str]:
    if values.is_floating_point():
        bad = ~torch.isfinite(values).flatten(1).all(1).numpy()
        if bad.any():
            yield f"The {what} are NaN or infinite {_examples(bad)}."


def _of_federation(schema: Schema, federation: Federation) -> Iterator[str]:
    if federation.task != schema.task:
        yield f"The task is {federation.task} where {schema.task} is expected."
    elif federation.classes != schema.classes:
        what = "classes" if schema.task == "classification" else "targets"
        yield f"There are {federation.classes} {what} where {schema.classes} are expected."
    if federation.feature_shape != schema.input_shape:
        yield f"Inputs have the shape {federation.feature_shape} where {schema.input_shape} is expected."
    parts: dict[str, ClientData] = {name: federation.split(name) for name in ("train", "validation", "test")}
    for name, data in parts.items():
        if data.total == 0:
            if name == "train":
                yield "There are no training examples."
            continue
        inputs, targets = data.client(0)
        where = f"In the {name} data: "
        yield from (where + sentence for sentence in _of_values("inputs", inputs))
        if federation.task == schema.task:
            yield from (where + sentence for sentence in _of_targets(schema, targets))


def _rows(bad: Mask) -> str:
    """In how many rows, and where the first is; the header is row 1."""
    count, first = int(bad.sum()), int(bad.argmax()) + 2
    return f"in row {first}" if count == 1 else f"in {count} rows, the first of them row {first}"


def _examples(bad: Any) -> str:
    count, first = int(bad.sum()), int(bad.argmax()) + 1
    return f"in example {first}" if count == 1 else f"in {count} examples, the first of them number {first}"


def _named(labels: Sequence[str], few: int = 10) -> str:
    if len(labels) > few and list(labels) == [str(c) for c in range(len(labels))]:
        return f"0 .. {len(labels) - 1}"
    return ", ".join(labels[:few]) + (", ..." if len(labels) > few else "")
