"""The columns of a divided table as inputs, by what the clients' training rows say of them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError, CoterieWarning
from coterie.federation.frames import Cells, encode_cells
from coterie.federation.partition.rule import Division
from coterie.federation.places import Origin
from coterie.federation.preparation import Preparation, Prepared
from coterie.federation.preparing import (
    Kind,
    Missing,
    Numbers,
    Summary,
    Values,
    as_sent,
    by_own_numbers,
    combined,
    features_of,
    size_of,
    summary_of,
    without_few,
    without_statistics,
)
from coterie.federation.schema import Feature, Schema

COARSE = 2.0**-13
"""Numbers that differ by less than this part of their size have at most about 1,000 values in single precision."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table with N rows.

    Attributes:
        cells, kinds: the features by name, in order.
        declared: the values of a category, where they are known beforehand.
        target: the column or columns to predict.
        labels: names of the classes; none for a regression.
        classes: the class of every row, ``(N,)``; ``None`` for a regression.
        settled: the classes are known beforehand, so that some may be without training rows.
        numbers: the targets to standardise, by name; none where targets are used as they are.
        missing, preprocessing: as in the configuration.
        where: says where a row is.
    """

    cells: Mapping[str, Cells]
    kinds: Mapping[str, Kind]
    declared: Mapping[str, Sequence[str]]
    target: str | list[str]
    labels: Sequence[str]
    classes: NDArray[np.int64] | None
    settled: bool
    numbers: Mapping[str, Cells]
    missing: Missing
    preprocessing: Literal["federated", "client", "none"]
    where: Origin

    def prepared(
        self,
        division: Division,
        names: Sequence[str],
        fitted: Schema | None = None,
        newcomers: Collection[int] = (),
    ) -> Prepared:
        """Inputs ``(N, d)`` for all rows, by the training rows of the clients ``names: (K,)`` alone.

        What clients have in common is that of the members: newcomers receive it, and send nothing.

        Args:
            division: which rows are whose, and for what.
            names: the clients.
            fitted: the schema of another table, which these rows follow.
            newcomers: the clients, by number, that are no members.

        Raises:
            CoterieError: a class or a whole column has no training row, or a column is not what was fitted.
        """
        if self.classes is not None and not self.settled:
            self._check_classes(division, names)
        summaries = [self._summary(rows) for rows in division.train]
        targets = [self._summary_of_targets(rows) for rows in division.train]
        members = [client for client in range(len(names)) if client not in newcomers]
        if fitted is not None:
            schema = self._like(fitted)
        else:
            schema = self.agreed([summaries[m] for m in members], [targets[m] for m in members])
        self._warn_of_unseen(schema, division, names)
        own = [by_own_numbers(schema, summary) for summary in summaries] if self.preprocessing == "client" else []
        exchanged = fitted is None and self.preprocessing != "none"
        preparation = self._exchange(schema, summaries, targets, division) if exchanged else None
        if preparation is not None:
            preparation.bytes_up[list(newcomers)] = 0
        if own:
            each = {name: of_client.as_dict() for name, of_client in zip(names, own, strict=True)}
            inputs = self._encoded_each(schema, own, division)
            return Prepared(inputs, {"schemas": each}, preparation, schema.target_normal)
        if self.preprocessing == "none":
            self._warn_of_coarse()
        inputs = torch.from_numpy(encode_cells(self.cells, schema.features or []))
        return Prepared(inputs, {"schema": schema.as_dict()}, preparation, schema.target_normal)

    def told(self, rows: NDArray[np.int64], least: int = 1) -> dict[str, Any]:
        """What a client sends of its training rows ``(n,)`` under ``preprocessing: federated``, as plain data.

        Values of a category that fewer than ``least`` of the rows have, and sums of fewer numbers, are withheld.
        """
        cells = {name: column.take(rows) for name, column in self.cells.items()}
        targets = {name: column.take(rows) for name, column in self.numbers.items()}
        features = without_few(cells, self._undeclared(summary_of(cells, self.kinds)), least)
        return as_sent({**features, **without_few(targets, self._summary_of_targets(rows), least)})

    def agreed(self, summaries: Sequence[Summary], targets: Sequence[Summary]) -> Schema:
        """The schema of all clients together, from what each says; the table itself is not looked at.

        Args:
            summaries: of the features, by client.
            targets: of the targets that are standardised.

        Raises:
            CoterieError: a column of categories has no value at any client.
        """
        if self.preprocessing == "none":
            return self._schema(self._as_declared())
        whole = self._with_declared(combined(summaries))
        self._check_columns(whole)
        schema = self._schema(features_of(whole, self.missing))
        scaling = [part for part in combined(targets).values() if isinstance(part, Numbers)]
        if not scaling:
            return schema
        statistics = {"target_mean": [part.mean for part in scaling], "target_std": [part.std for part in scaling]}
        return schema.model_copy(update=statistics)

    def _like(self, fitted: Schema) -> Schema:
        """A schema that was fitted before, if the columns are what they were then."""
        for feature in fitted.features or []:
            if self.kinds[feature.name] != feature.kind:
                first = int((~self.cells[feature.name].missing).argmax())
                raise CoterieError(
                    f"{self.where(first)}: the column {feature.name!r} is a {self.kinds[feature.name]}, but was a "
                    f"{feature.kind} in training: correct it."
                )
        return fitted

    def _exchange(
        self, schema: Schema, summaries: Sequence[Summary], targets: Sequence[Summary], division: Division
    ) -> Preparation:
        """The bytes of what clients send and receive."""
        if self.preprocessing == "client":
            sent = [without_statistics(self._undeclared(summary)) for summary in summaries]
            schema = schema.plain()
        else:
            sent = [as_sent(self._undeclared(summary)) for summary in summaries]
        sent = [content | as_sent(own) for content, own in zip(sent, targets, strict=True)]
        up = np.array(self._sizes(sent, division), dtype=np.int64)
        return Preparation(up, np.full(len(up), size_of(schema.as_dict()), dtype=np.int64))

    def _encoded_each(self, schema: Schema, own: Sequence[Schema], division: Division) -> torch.Tensor:
        """Every client's rows by its own schema; rows that are nobody's stay 0."""
        inputs = np.zeros((len(self), schema.inputs), dtype=np.float32)
        for of_client, *parts in zip(own, division.train, division.validation, division.test, strict=True):
            rows = np.concatenate(parts)
            cells = {name: column.take(rows) for name, column in self.cells.items()}
            inputs[rows] = encode_cells(cells, of_client.features or [])
        return torch.from_numpy(inputs)

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())).missing)

    def _summary(self, rows: NDArray[np.int64]) -> Summary:
        """What a client says of its training rows."""
        return summary_of({name: cells.take(rows) for name, cells in self.cells.items()}, self.kinds)

    def _summary_of_targets(self, rows: NDArray[np.int64]) -> Summary:
        """What a client says of the targets of its training rows, where they are standardised."""
        return summary_of({name: cells.take(rows) for name, cells in self.numbers.items()}, self._kinds_of_targets)

    @property
    def _kinds_of_targets(self) -> Mapping[str, Kind]:
        return dict.fromkeys(self.numbers, "number")

    def _sizes(self, sent: Sequence[Mapping[str, Any]], division: Division) -> list[int]:
        """Bytes of what each client sends; the classes that it has go with it, unless they are known beforehand."""
        if self.classes is None or self.settled:
            return [size_of(content) for content in sent]
        own = [[self.labels[c] for c in np.unique(self.classes[rows])] for rows in division.train]
        return [size_of([content, classes]) for content, classes in zip(sent, own, strict=True)]

    def _undeclared(self, summary: Summary) -> Summary:
        """A summary without the values that are declared, which need not be told."""
        return {name: Values((), part.missing) if name in self.declared else part for name, part in summary.items()}

    def _with_declared(self, summary: Summary) -> Summary:
        return {
            name: Values(tuple(self.declared[name]), part.missing) if name in self.declared else part
            for name, part in summary.items()
        }

    def _as_declared(self) -> list[Feature]:
        """The features where nothing is computed: numbers as they are, categories as declared."""
        features = []
        for name, kind in self.kinds.items():
            if kind == "category" and name not in self.declared:
                raise CoterieError(
                    f"The values of the column {name!r} are not collected under preprocessing: none: list them, as in "
                    f"categorical: {{{name}: [a, b]}}."
                )
            values = list(self.declared[name]) if kind == "category" else []
            features.append(Feature(name=name, kind=kind, values=values, missing=self.missing == "mark"))
        return features

    def _schema(self, features: list[Feature]) -> Schema:
        if self.classes is None:
            count = 1 if isinstance(self.target, str) else len(self.target)
            return Schema(task="regression", classes=count, target=self.target, features=features)
        return Schema(classes=len(self.labels), labels=list(self.labels), target=self.target, features=features)

    def _check_columns(self, whole: Summary) -> None:
        for name, part in whole.items():
            if isinstance(part, Values) and not part.values:
                raise CoterieError(
                    f"The column {name!r} has no value in any training row, so nothing can be learnt from it: list it "
                    "under ignore."
                )

    def _check_classes(self, division: Division, names: Sequence[str]) -> None:
        assert self.classes is not None
        trained = np.zeros(len(self.labels), dtype=bool)
        trained[self.classes[np.concatenate(list(division.train))]] = True
        for part in ("validation", "test"):
            for name, rows in zip(names, getattr(division, part), strict=True):
                if len(unknown := rows[~trained[self.classes[rows]]]):
                    row = int(unknown[0])
                    raise CoterieError(
                        f"{self.where(row)}: the class {self.labels[self.classes[row]]!r} of the target is in the "
                        f"{part} data of client {name!r}, but in no training data: list all classes under labels to "
                        "keep it."
                    )

    def _warn_of_coarse(self) -> None:
        """One warning for numbers that are far larger than their differences, of which models see little."""
        found = []
        for name, cells in self.cells.items():
            if self.kinds[name] == "number" and not cells.missing.all():
                values = cells.values[~cells.missing]
                width, size = np.ptp(values), np.abs(values).max()
                if 0 < width < COARSE * size:
                    found.append(name)
        if found:
            warnings.warn(
                f"Inputs are single-precision numbers, and the values of the column{'s' if len(found) > 1 else ''} "
                f"{', '.join(repr(name) for name in found)} are so large beside their differences that most of these "
                "are lost: subtract what they have in common, or leave out preprocessing: none.",
                CoterieWarning,
                stacklevel=2,
            )

    def _warn_of_unseen(self, schema: Schema, division: Division, names: Sequence[str]) -> None:
        """One warning for all categories that no client has in training."""
        found = []
        for feature in schema.features or []:
            if feature.kind == "number":
                continue
            cells = self.cells[feature.name]
            odd = ~cells.missing & ~np.isin(cells.values.astype(str), feature.values)
            if odd.any():
                for name, *parts in zip(names, division.train, division.validation, division.test, strict=True):
                    rows = np.concatenate(parts)
                    values = dict.fromkeys(cells.values[rows[odd[rows]]].tolist())
                    found += [(feature.name, value, name) for value in values]
        if found:
            column, value, client = found[0]
            more = f" (and {len(found) - 1} more such values)" if len(found) > 1 else ""
            warnings.warn(
                f"The value {value!r} of the column {column!r} at client {client!r} is none of those in "
                f"training{more}: it counts as no value.",
                CoterieWarning,
                stacklevel=2,
            )
