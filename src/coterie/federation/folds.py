"""Cross-fitting: every example that is not for testing validates once, by a model that was trained without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie.federation.examples import Examples, Rows
from coterie.federation.partition import Division


class Fold(BaseModel):
    """One of several ways to divide what is not for testing: part ``index`` of ``of`` validates, the rest trains."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    index: int = Field(ge=0, description="which part validates, from 0")
    of: int = Field(ge=2, description="number of parts")

    @model_validator(mode="after")
    def _exists(self) -> Fold:
        if self.index >= self.of:
            raise ValueError(f"of {self.of} folds the last has the index {self.of - 1}, so there is no {self.index}")
        return self


def folded(division: Division, examples: Examples, fold: Fold, seed: int) -> Division:
    """The same division with other training and validation examples; who is tested on what stays.

    Parts are drawn client by client from what it trains and validates on, every class in like proportion and equal for
    all values of ``fold.index``. A client with less than two such examples keeps what it has.
    """
    strata = examples.labels if examples.task == "classification" else np.zeros(len(examples), dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64([seed, fold.of]))
    train, validation = list(division.train), list(division.validation)
    for client, rows in enumerate(_pools(division)):
        part = _parts(rows, strata, fold.of, generator)
        if len(rows) >= 2:
            train[client], validation[client] = rows[part != fold.index], rows[part == fold.index]
    return replace(division, train=train, validation=validation)


def _pools(division: Division) -> Sequence[Rows]:
    """What each client trains and validates on, in the order of the source."""
    return [np.sort(np.concatenate(both)) for both in zip(division.train, division.validation, strict=True)]


def _parts(rows: Rows, strata: Rows, count: int, generator: np.random.Generator) -> Rows:
    """The part of each row: rows of a class, shuffled, are dealt in turn; the next class goes on where one ends."""
    shuffled = generator.permutation(len(rows))
    dealt = shuffled[np.argsort(strata[rows[shuffled]], kind="stable")]
    part: Rows = np.empty(len(rows), dtype=np.int64)
    part[dealt] = (np.arange(len(rows)) + generator.integers(count)) % count
    return part
