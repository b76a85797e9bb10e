"""Cross-fitting: every example that is not for testing validates once, by a model that was trained without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.examples import Examples, Rows
from coterie.federation.federation import Federation
from coterie.federation.partition import Division
from coterie.federation.partition.blocks import mixed_block


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
    all values of ``fold.index``; blocks stay whole, and in the order of time parts are periods, where a block counts at
    its latest time. A client of whose examples one fold would leave none to train on keeps what it has.
    """
    strata = examples.labels if examples.task == "classification" else np.zeros(len(examples), dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64([seed, fold.of]))
    train, validation = list(division.train), list(division.validation)
    part_of: dict[int, int] = {}  # of a block, which several clients may share
    blocks, order = examples.block_numbers, examples.times
    for client in range(len(train)):
        rows = np.sort(np.concatenate([train[client], validation[client]]))
        times = None if order is None else order[rows]
        part = _dealt(strata[rows], fold.of, generator) if times is None else _periods(times, fold.of)
        if blocks is not None:
            part = _whole(blocks[rows], part, part_of, fold.of, times)
        if len(np.unique(part)) > 1:
            train[client], validation[client] = rows[part != fold.index], rows[part == fold.index]
    return replace(division, train=train, validation=validation)


def refolded(federation: Federation, fold: Fold, seed: int) -> Federation:
    """The same for a federation that is divided already.

    Raises:
        CoterieError: its examples have weights, which were fitted to the training data that it has, or a block of
            several clients cannot be on one side at all of them.
    """
    if federation.train.weights is not None:
        raise CoterieError(
            "Folds of a federation whose examples have weights are not available: leave out the weights."
        )
    train, validation = federation.train, federation.validation
    same = train.inputs is validation.inputs and train.targets is validation.targets

    def joined(name: str) -> Any:
        mine, theirs = getattr(train, name), getattr(validation, name)
        return mine if same or mine is None else torch.cat([mine, theirs])

    known = {name: joined(name) for name in ("inputs", "targets", "blocks", "order")}
    blocks, order = (None if known[name] is None else known[name].tolist() for name in ("blocks", "order"))
    rows = [_rows_by_client(train, 0), _rows_by_client(validation, 0 if same else len(train.inputs))]
    examples = Examples(
        "federation",
        known["inputs"],
        known["targets"],
        federation.classes,
        federation.task,
        blocks=blocks,
        order=order,
    )
    parts = folded(Division(rows[0], rows[1], []), examples, fold, seed)
    if blocks is not None and mixed_block((parts.train, parts.validation), blocks) is not None:
        raise CoterieError(
            "A block of several clients cannot be on one side at all of them, since one of these has no other blocks: "
            "ask for no folds (guard.folds: 0), or leave that client out."
        )

    def split(rows: Sequence[Rows]) -> ClientData:
        offsets = torch.tensor([0, *map(len, rows)], dtype=torch.int64).cumsum(0)
        return replace(train, **known, offsets=offsets, index=torch.from_numpy(np.concatenate(rows)))

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


def _whole(blocks: Rows, wanted: Rows, part_of: dict[int, int], count: int, times: Rows | None) -> Rows:
    """The part of each row, equal within a block.

    The largest blocks come first, each to the part that lacks most; where there are times, the earliest come first,
    each to the part in which its middle row then lies.
    """
    lacking = np.bincount(wanted, minlength=count)
    found, place, sizes = np.unique(blocks, return_inverse=True, return_counts=True)
    if times is None:
        for block, size in sorted(zip(found.tolist(), sizes.tolist(), strict=True), key=lambda pair: -pair[1]):
            part = part_of.setdefault(block, int(np.argmax(lacking)))
            lacking[part] -= size
    else:
        ranks = np.argsort(np.argsort(times, kind="stable"), kind="stable")
        latest = np.zeros(len(found), dtype=np.int64)
        np.maximum.at(latest, place, ranks)
        before = 0
        for one in np.argsort(latest).tolist():
            part_of.setdefault(int(found[one]), (2 * before + int(sizes[one])) * count // (2 * len(blocks)))
            before += int(sizes[one])
    return np.array([part_of[block] for block in blocks.tolist()], dtype=np.int64)
