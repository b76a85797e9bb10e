"""A new site's table as a newcomer: encoded as those of the members were, and divided."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.runner import stored_config
from coterie.federation import ClientData, Federation
from coterie.federation.examples import Examples
from coterie.federation.frames import encode, encode_target, read_frame, texts
from coterie.federation.partition import RULES
from coterie.federation.partition.rule import Sizes
from coterie.federation.partition.shares import SplitRule
from coterie.federation.places import Origin
from coterie.federation.preparing import standardised
from coterie.federation.raw_table import numbering, raw_columns
from coterie.federation.schema import Feature, Schema
from coterie.federation.tables import full_texts, times
from coterie.federation.weights import read_weights, training_means
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
        """Whether the table has what is predicted; raises CoterieError where it has some of these columns only."""
        return self._has_targets(read_frame(self.path), self._members(seed))

    def federation(self, seed: int) -> tuple[Federation, Schema]:
        """The new site alone, and how its columns became inputs.

        Without columns of targets all examples are in every part, with targets that mean nothing.

        Raises
        ------
        CoterieError
            The run's data were no table, or this one does not fit: one sentence for each difference.
        """
        schema, table = self._members(seed), read_frame(self.path)
        assert schema.features is not None
        raw_columns(table, schema.features, str(self.path), *numbering(self.path))  # says what does not fit
        if not self._has_targets(table, schema):
            everything = np.arange(len(table))
            targets = np.zeros(len(table), dtype=np.int64)
            if schema.task == "regression":
                targets = np.zeros((len(table), schema.classes), dtype=np.float32)
            parts = dict.fromkeys(("train", "validation", "test"), everything)
        else:
            targets = self._targets(table, schema)
            parts = self._divided(table, targets, schema, seed)
        if not self._shared(seed):
            schema = standardised(schema, table.iloc[parts["train"]])
        inputs, answers = torch.from_numpy(encode(table, schema.features or ())), torch.from_numpy(targets)
        weights = self._weights(table, parts["train"])
        splits: dict[str, Any] = {
            part: ClientData(
                inputs[rows],
                answers[rows],
                torch.tensor([0, len(rows)]),
                weights=None if weights is None else torch.from_numpy(weights[rows]),
                target_normal=schema.target_normal,
            )
            for part, rows in parts.items()
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

    def _has_targets(self, table: pd.DataFrame, schema: Schema) -> bool:
        if not schema.targets:
            raise CoterieError(f"{self.run.path} predicts no column, so that a table cannot join it.")
        missing = [name for name in schema.targets if name not in table.columns]
        if missing and len(missing) < len(schema.targets):
            raise CoterieError(
                f"{self.path} has no column {missing[0]!r}, one of the {len(schema.targets)} targets: add it, or "
                "remove all of them for a client without labels."
            )
        return not missing

    def _targets(self, table: pd.DataFrame, schema: Schema) -> NDArray[Any]:
        """Classes ``(n,)`` or numbers ``(n, t)``, all of them there."""
        unit, first = numbering(self.path)
        targets = encode_target(table, schema)
        bad = targets[:, None] < 0 if schema.task == "classification" else ~np.isfinite(targets)
        if bad.any():
            known = f"one of {', '.join(schema.label_names)}" if schema.task == "classification" else "a number"
            row, place = (int(at[0]) for at in bad.nonzero())
            target = schema.targets[place]
            found = texts(table[target]).values[row]
            raise CoterieError(f"{self.path}, {unit} {row + first}: {target!r} should be {known}, not {found!r}.")
        return targets

    def _divided(
        self, table: pd.DataFrame, targets: NDArray[Any], schema: Schema, seed: int
    ) -> dict[str, NDArray[np.int64]]:
        """Rows of each part, split as the members' rows were: by patient and by time where these were."""
        examples = Examples(
            self.path.name,
            torch.zeros(len(table), 0),
            torch.from_numpy(targets),
            classes=schema.classes,
            task=schema.task,
            blocks=self._column(table, "group"),
            order=self._column(table, "time"),
        )
        rule = RULES["natural"].model_validate({"rule": "natural", "min_examples": 1})
        order = generator(seed, 0, f"new site {self.name}").permutation(len(table))
        assert isinstance(rule, SplitRule)
        parts = rule.split(examples, [order], [self.name], SIZES)
        return {part: rows[0] for part, rows in zip(("train", "validation", "test"), parts, strict=True)}

    def _weights(self, table: pd.DataFrame, train: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """How much each row counts, where the members' rows had weights and these have them, too."""
        column = self._named(table, "weights", "weighed", "its rows count alike")
        if column is None:
            return None
        weights = read_weights(table, column, self._origin)
        scaled: NDArray[np.float64] = weights / training_means(weights, [train], [self.name])[0]
        return scaled

    def _column(self, table: pd.DataFrame, key: str) -> list[Any] | None:
        """The column by which the run's ``federation.<key>`` split its members' rows; None where nothing did."""
        column = self._named(table, key, "split", "its rows are split without it")
        if column is None:
            return None
        where = self._origin
        values = full_texts(table, column, key, where) if key == "group" else times(table, column, where)
        return list(values.tolist())

    def _named(self, table: pd.DataFrame, key: str, what: str, otherwise: str) -> str | None:
        """The column that the run's ``federation.<key>`` names, by which its members' rows were split or weighed.

        None where it names none, and, with a warning of what happens ``otherwise``, where the table has no such column.
        """
        column = stored_config(self.run)["federation"].get(key)
        if not isinstance(column, str):
            return None
        if column in table.columns:
            return column
        warnings.warn(
            f"{self.path} has no column {column!r} (federation.{key}), by which the members' rows were {what}: "
            f"{otherwise}.",
            CoterieWarning,
            stacklevel=2,
        )
        return None

    @property
    def _origin(self) -> Origin:
        return Origin(str(self.path), [(str(self.path), *numbering(self.path))])


def _layout(feature: Feature) -> tuple[Any, ...]:
    return feature.name, feature.kind, tuple(feature.values), feature.missing
