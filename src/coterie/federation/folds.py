"""Cross-fitting: every example that is not for testing validates once, by a model that was trained without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.examples import Examples, Rows
from coterie.federation.federation import Federation
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
    all values of ``fold.index``; blocks stay whole, and in the order of time parts are periods. A client of whose
    examples one fold would leave none to train on keeps what it has.
    """
    strata = examples.labels if examples.task == "classification" else np.zeros(len(examples), dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64([seed, fold.of]))
    train, validation = list(division.train), list(division.validation)
    part_of: dict[int, int] = {}  # of a block, which several clients may share
    blocks = None if examples.blocks is None else pd.factorize(np.asarray(examples.blocks, dtype=object))[0]
    for client in range(len(train)):
        rows = np.sort(np.concatenate([train[client], validation[client]]))
        if examples.order is not None:
            part = _periods(np.asarray(examples.order)[rows], fold.of)
        else:
            part = _dealt(strata[rows], fold.of, generator)
        if blocks is not None:
            part = _whole(blocks[rows], part, part_of, fold.of)
        if len(np.unique(part)) > 1:
            train[client], validation[client] = rows[part != fold.index], rows[part == fold.index]
    return replace(division, train=train, validation=validation)


def refolded(federation: Federation, fold: Fold, seed: int) -> Federation:
    """The same for a federation that is divided already; it does not say which examples belong together, or when.

    Raises:
        CoterieError: its examples have weights, which were fitted to the training data that it has.
    """
    if federation.train.weights is not None:
        raise CoterieError(
            "Folds of a federation whose examples have weights are not available: leave out the weights."
        )
    train, validation = federation.train, federation.validation
    same = train.inputs is validation.inputs and train.targets is validation.targets
    inputs, targets = (
        getattr(train, name) if same else torch.cat([getattr(train, name), getattr(validation, name)])
        for name in ("inputs", "targets")
    )
    rows = [_rows_by_client(train, 0), _rows_by_client(validation, 0 if same else len(train.inputs))]
    examples = Examples("federation", inputs, targets, federation.classes, federation.task)
    parts = folded(Division(rows[0], rows[1], []), examples, fold, seed)

    def split(rows: Sequence[Rows]) -> ClientData:
        offsets = torch.tensor([0, *map(len, rows)], dtype=torch.int64).cumsum(0)
        return replace(
            train, inputs=inputs, targets=targets, offsets=offsets, index=torch.from_numpy(np.concatenate(rows))
        )

    return replace(federation, train=split(parts.train), validation=split(parts.validation))


def _rows_by_client(data: ClientData, before: int) -> list[Rows]:
    """The rows of each client, where so many others come ``before``."""
    positions = torch.arange(int(data.offsets[0]), int(data.offsets[-1]))
    rows = data.rows(positions).numpy() + before
    return np.split(rows, (data.offsets[1:-1] - data.offsets[0]).numpy())


def _dealt(strata: Rows, count: int, generator: np.random.Generator) -> Rows:
    """The part of each row: rows of a class, shuffled, are dealt in turn; the next class goes on where one ends."""
    shuffled = generator.permutation(len(strata))
    dealt = shuffled[np.argsort(strata[shuffled], kind="stable")]
    part: Rows = np.empty(len(strata), dtype=np.int64)
    part[dealt] = (np.arange(len(strata)) + generator.integers(count)) % count
    return part


def _periods(times: Rows, count: int) -> Rows:
    """The part of each row: the earliest rows, the next ones, ..."""
    part: Rows = np.empty(len(times), dtype=np.int64)
    part[np.argsort(times, kind="stable")] = np.arange(len(times)) * count // max(1, len(times))
    return part


def _whole(blocks: Rows, wanted: Rows, part_of: dict[int, int], count: int) -> Rows:
    """The part of each row, equal within a block: the largest blocks first, each to the part that lacks most."""
    lacking = np.bincount(wanted, minlength=count)
    found, sizes = np.unique(blocks, return_counts=True)
    for block, size in sorted(zip(found.tolist(), sizes.tolist(), strict=True), key=lambda pair: -pair[1]):
        part = part_of.setdefault(block, int(np.argmax(lacking)))
        lacking[part] -= size
    return np.array([part_of[block] for block in blocks.tolist()], dtype=np.int64)
