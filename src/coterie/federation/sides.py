"""Splits that the data themselves ask for: an official one, rows that stay together, or the order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.places import Origin

Rows = NDArray[np.int64]
Counts = tuple[int, int, int]
Parts = tuple[Rows, Rows, Rows]


@dataclass(frozen=True, eq=False)
class Official:
    """Every row says itself whether it is for training, validation or test.

    Attributes:
        parts: ``(N,)`` texts ``train``, ``validation`` or ``test``.
        complete: where there are no validation rows, none are wanted.
    """

    parts: NDArray[Any]
    complete: bool = False

    def split(self, share: Rows, name: str, carve: Callable[[Rows], tuple[Rows, Rows]]) -> Parts:
        """A client's rows as its parts say; where no client has validation rows, these are ``carve``d from training."""
        part = self.parts[share]
        train, validation, test = (share[part == side] for side in ("train", "validation", "test"))
        if not self.complete and not (self.parts == "validation").any():
            train, validation = carve(train)
        for side, rows in (("training", train), ("test", test)):
            if len(rows) == 0:
                raise CoterieError(
                    f"Client {name!r} has no {side} rows in the official split: give it some, or leave it out."
                )
        return train, validation, test


@dataclass(frozen=True, eq=False)
class Together:
    """Rows of one value, such as a patient, stay on one side.

    Attributes:
        column: where the values come from, for messages.
        values: ``(N,)`` texts.
    """

    column: str
    values: NDArray[Any]

    def split(self, share: Rows, name: str, counts: Counts) -> Parts:
        """Deal whole groups of a shuffled share, the largest first, to the side that lacks most of its ``counts``."""
        blocks: dict[str, list[int]] = {}
        for row in share.tolist():
            blocks.setdefault(self.values[row], []).append(row)
        wanted = [side for side in range(3) if counts[side] > 0]
        if len(blocks) < len(wanted):
            raise CoterieError(
                f"Client {name!r} has {len(blocks)} different values of the column {self.column!r}, whose rows stay "
                f"together, for {len(wanted)} splits: remove the client, or give validation: 0 where one is too many."
            )
        dealt: list[list[int]] = [[], [], []]
        ordered = sorted(blocks.values(), key=len, reverse=True)
        for position, block in enumerate(ordered):
            empty = [side for side in wanted if not dealt[side]]
            last = len(empty) == len(ordered) - position  # every side gets a group
            side = empty[0] if last else max(wanted, key=lambda side: counts[side] - len(dealt[side]))
            dealt[side] += block
        train, validation, test = (np.array(sorted(rows), dtype=np.int64) for rows in dealt)
        return train, validation, test


@dataclass(frozen=True, eq=False)
class InTime:
    """The earliest rows are for training, then come those for validation, and the latest are for testing.

    Attributes:
        times: ``(N,)`` numbers.
    """

    times: NDArray[np.float64]

    def split(self, share: Rows, name: str, counts: Counts) -> Parts:
        """A share by time; rows of one moment keep the order of the source."""
        rows = np.sort(share)
        rows = rows[np.argsort(self.times[rows], kind="stable")]
        train, validation, test = counts
        later = len(rows) - validation - test
        return rows[:train], rows[later : later + validation], rows[later + validation :]


Sides = Official | Together | InTime


def read_parts(values: Sequence[str], where: Origin) -> NDArray[Any]:
    """The words of a split column as ``train``, ``validation`` and ``test``, ``(N,)``.

    Raises:
        CoterieError: another word; ``where`` says where a row is.
    """
    known = {word: side for side, words in WORDS.items() for word in words}
    parts = np.array([known.get(value.lower(), "") for value in values], dtype=object)
    if len(wrong := np.flatnonzero(parts == "")):
        raise CoterieError(
            f"{where(int(wrong[0]))}: {values[wrong[0]]!r} is no split: write train, validation or test."
        )
    for side in ("train", "test"):
        if not (parts == side).any():
            raise CoterieError(f"{where.name} has no row for {side} in its column of splits: give some.")
    return parts


WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
