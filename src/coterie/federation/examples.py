"""What a source delivers before it is divided among clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.data import Normal
from coterie.federation.federation import Task
from coterie.federation.preparation import Prepared
from coterie.federation.sides import Official

if TYPE_CHECKING:
    from coterie.federation.partition.rule import Division
    from coterie.federation.schema import Schema

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """One data set as published.

    Attributes:
        name: name of the source.
        inputs: ``(N, *feature_shape)`` uint8 or float32; official training examples first, then the official
            test ones.
        targets: ``(N,)`` int64 classes, or ``(N, t)`` float32 for regression.
        classes: number of classes, or of targets for regression.
        task: ``classification`` or ``regression``.
        boundary: number of official training examples; ``None`` where no official test set exists.
        scale: factor for uint8 inputs when they are used.
        groups: natural groups by kind (``hospital``, ``year``): the name of its group for each of the N examples.
        blocks: what belongs together, such as the visits of a patient: the block of each of the N examples, as a number
            or a text. All examples of a block go to one split. ``None`` where each example stands for itself.
        order: when each of the N examples was taken, as numbers or dates: the earliest are for training, the latest for
            the test. ``None`` where time plays no part.
        weights: how much each of the N examples counts, at least 0; ``None`` where all count alike.
        target_normal: how the targets of a regression are standardised; ``None`` where they are used as they are.
        statistics: mean and standard deviation of each channel that papers normalise with, where there are such.
        sides: which rows the data themselves say are for testing, client by client; ``None`` leaves that to the draw.
        prepare: gives the inputs once the rows are divided among the named clients, where they depend on that, or on a
            schema that was fitted before. Of some clients, by number, nothing enters what is common to all.
        files: SHA-256 of the user's own files, by path, where they come from such.
        facts: what `Federation.source` shall say besides: ``class_names`` in order, where classes have others than 0,
            1, ...; ``schema`` or ``schemas``, by which a table has become these inputs.
        checksum: stands for the values, where ``inputs`` do not hold them yet.

    Raises:
        CoterieError: targets, groups, blocks, times or weights are more or fewer than inputs.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    classes: int
    task: Task = "classification"
    boundary: int | None = None
    scale: float = 1.0
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    statistics: tuple[Sequence[float], Sequence[float]] | None = None
    blocks: Sequence[int | str] | None = None
    order: Sequence[Any] | None = None
    sides: Official | None = None
    prepare: Callable[[Division, Sequence[str], Schema | None, Collection[int]], Prepared] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    checksum: str | None = None
    weights: NDArray[np.float64] | None = None
    target_normal: Normal | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {"targets": len(self.targets), **{f"groups {kind!r}": len(of) for kind, of in self.groups.items()}}
        lengths |= {what: len(of) for what, of in self._by_row if of is not None}
        for what, length in lengths.items():
            if length != len(self):
                raise CoterieError(f"{self.name!r} has {len(self):,} inputs but {length:,} {what}: give one an input.")

    @property
    def _by_row(self) -> tuple[tuple[str, Sequence[Any] | NDArray[np.float64] | None], ...]:
        return ("blocks", self.blocks), ("times", self.order), ("weights", self.weights)

    def __len__(self) -> int:
        return len(self.inputs)

    def of_files(self, files: Mapping[str, str]) -> Examples:
        """The same, known by the checksums of its files."""
        joined = hashlib.sha256("".join(files.values()).encode()).hexdigest()
        return replace(self, files=files, checksum=joined if len(files) > 1 else next(iter(files.values())))

    def with_sides(self, sides: Official) -> Examples:
        """The same, to be split in another way."""
        return replace(self, sides=sides)

    @property
    def digest(self) -> str:
        """SHA-256 of the values (inputs, then targets), whatever file they came from, or else of the files."""
        if self.checksum is not None:
            return self.checksum
        sha = hashlib.sha256(self.inputs.contiguous().numpy().data)
        sha.update(self.targets.contiguous().numpy().data)
        return sha.hexdigest()

    @cached_property
    def block_numbers(self) -> Rows | None:
        """The blocks as numbers from 0, in the order in which they occur, ``(N,)``; computed once for all clients."""
        return None if self.blocks is None else numbered(np.asarray(self.blocks, dtype=object))

    @cached_property
    def times(self) -> NDArray[Any] | None:
        """The order as an array, ``(N,)``; computed once for all clients."""
        return None if self.order is None else np.asarray(self.order)

    @property
    def all_rows(self) -> Rows:
        """Every row, ``(N,)``."""
        return np.arange(len(self), dtype=np.int64)

    @property
    def train_rows(self) -> Rows:
        """Rows of the official training set; every row where there is no official test set."""
        return self.all_rows[: self.boundary]

    @property
    def test_rows(self) -> Rows:
        """Rows of the official test set, maybe none."""
        return self.all_rows[len(self) if self.boundary is None else self.boundary :]

    @property
    def labels(self) -> Rows:
        """The targets as a numpy array, ``(N,)`` int64 for classification."""
        return np.asarray(self.targets.numpy(), dtype=np.int64)


def numbered(values: NDArray[Any]) -> Rows:
    """Numbers or texts as numbers from 0, in the order in which they occur."""
    numbers: Rows = pd.factorize(values)[0].astype(np.int64)
    return numbers
