"""A new site's table as a newcomer: encoded as those of the members were, and divided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation
from coterie.federation.frames import encode, encode_target, numbers, read_frame, texts
from coterie.federation.partition.rule import Sizes
from coterie.federation.partition.shares import split_counts, stratified
from coterie.federation.raw_table import numbering, raw_columns
from coterie.federation.schema import Feature, Schema
from coterie.runs import RunDirectory
from coterie.runs.schemas import Schemas
from coterie.training.keys import generator

if TYPE_CHECKING:
    import pandas as pd

SIZES = Sizes("rest", 0.2, 0.2)
"""Of a site's examples, a fifth for validation and a fifth for the test."""


@dataclass(frozen=True)
class NewSite:
    """A table, and the run whose members its owner wants to join.

    Attributes
    ----------
    run : RunDirectory
        The run, which keeps the schemas of its members' tables.
    path : Path
        The table.
    name : str
        What the new client is called.
    """

    run: RunDirectory
    path: Path
    name: str

    def labelled(self, seed: int) -> bool:
        """Whether the table has the column that is predicted."""
        return self._target(self._members(seed)) in read_frame(self.path).columns

    def federation(self, seed: int) -> tuple[Federation, Schema]:
        """The new site alone, and how its columns became inputs.

        Without the column of the target all examples are in every part, with targets that mean nothing.

        Raises
        ------
        CoterieError
            The run's data were no table, or this one does not fit: one sentence for each difference.
        """
        schema, table = self._members(seed), read_frame(self.path)
        assert schema.features is not None
        raw_columns(table, schema.features, str(self.path), *numbering(self.path))  # says what does not fit
        if self._target(schema) not in table.columns:
            everything = np.arange(len(table))
            targets = np.zeros(len(table), dtype=np.int64)
            if schema.task == "regression":
                targets = np.zeros((len(table), schema.classes), dtype=np.float32)
            parts = dict.fromkeys(("train", "validation", "test"), everything)
        else:
            targets = self._targets(table, schema)
            parts = self._divided(targets, seed)
        if not self._shared(seed):
            schema = _own(schema, table.iloc[parts["train"]])
        inputs, answers = torch.from_numpy(encode(table, schema.features or ())), torch.from_numpy(targets)
        splits: dict[str, Any] = {
            part: ClientData(inputs[rows], answers[rows], torch.tensor([0, len(rows)])) for part, rows in parts.items()
        }
        source = {"source": self.path.name}
        federation = Federation((self.name,), task=schema.task, classes=schema.classes, source=source, **splits)
        return federation.validate(), schema

    def _shared(self, seed: int) -> bool:
        return Schemas.read(self.run.path, seed).shared is not None

    def _members(self, seed: int) -> Schema:
        """The schema of all members, or that of the first where each has its own: they differ in statistics only."""
        found = Schemas.read(self.run.path, seed)
        schemas = [found.shared] if found.shared is not None else list(found.own.values())
        if not schemas or schemas[0].features is None:
            raise CoterieError(
                f"{self.path} is a table, but {self.run.path} does not say how the members' tables became inputs: its "
                "data were none, or it is of an earlier version. Give a configuration that describes the newcomers."
            )
        if len({tuple(_layout(feature) for feature in schema.features or ()) for schema in schemas}) > 1:
            raise CoterieError(
                f"{self.run.path}: the members' tables differ in more than statistics, so none can join."
            )
        return schemas[0]

    def _target(self, schema: Schema) -> str:
        if not isinstance(schema.target, str):
            raise CoterieError(f"{self.run.path} predicts no single column, so that a table cannot join it.")
        return schema.target

    def _targets(self, table: pd.DataFrame, schema: Schema) -> NDArray[Any]:
        """Classes ``(n,)`` or numbers ``(n, 1)``, all of them there."""
        target = self._target(schema)
        unit, first = numbering(self.path)
        targets = encode_target(table, schema)
        bad = targets < 0 if schema.task == "classification" else ~np.isfinite(targets[:, 0])
        if bad.any():
            known = f"one of {', '.join(schema.label_names)}" if schema.task == "classification" else "a number"
            found = texts(table[target]).values[int(bad.argmax())]
            raise CoterieError(
                f"{self.path}, {unit} {int(bad.argmax()) + first}: {target!r} should be {known}, not {found!r}."
            )
        return targets

    def _divided(self, targets: NDArray[Any], seed: int) -> dict[str, NDArray[np.int64]]:
        strata = targets if targets.ndim == 1 else np.zeros(len(targets), dtype=np.int64)
        counts = np.array([split_counts(self.name, len(strata), SIZES)])
        order = generator(seed, 0, f"new site {self.name}").permutation(len(strata))
        train, validation, test = stratified([order], strata, counts, int(strata.max(initial=0)) + 1)
        return {"train": train[0], "validation": validation[0], "test": test[0]}


def _layout(feature: Feature) -> tuple[Any, ...]:
    return feature.name, feature.kind, tuple(feature.values), feature.missing


def _own(schema: Schema, table: pd.DataFrame) -> Schema:
    """The schema with the site's own means and deviations, as its members have theirs."""
    features = []
    for feature in schema.features or ():
        if feature.kind == "number":
            cells = numbers(table[feature.name])
            known = cells.values[~cells.missing]
            if len(known):
                statistics = {"mean": float(known.mean()), "std": float(known.std()) or 1.0}
                feature = feature.model_copy(update=statistics)
        features.append(feature)
    return schema.model_copy(update={"features": features})
