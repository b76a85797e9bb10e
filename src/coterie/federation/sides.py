"""The official split of a user's own data: every row says itself what it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.places import Origin

Rows = NDArray[np.int64]
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
        if not self.names_validation:
            train, validation = carve(train)
        for side, rows in (("training", train), ("test", test)):
            if len(rows) == 0:
                raise CoterieError(
                    f"Client {name!r} has no {side} rows in the official split: give it some, or leave it out."
                )
        return train, validation, test

    @cached_property
    def names_validation(self) -> bool:
        """Whether none are to be taken from training, which all N rows are asked for once, not once a client."""
        return self.complete or bool((self.parts == "validation").any())


def read_parts(values: Sequence[str], where: Origin) -> NDArray[Any]:
    """The words of a split column as ``train``, ``validation`` and ``test``, ``(N,)``.

    Raises:
        CoterieError: another word; ``where`` says where a row is.
    """
    parts = np.array([SIDE_OF.get(value.lower(), "") for value in values], dtype=object)
    if len(wrong := np.flatnonzero(parts == "")):
        raise CoterieError(
            f"{where(int(wrong[0]))}: {values[wrong[0]]!r} is no split: write train, validation or test."
        )
    for side in ("train", "test"):
        if not (parts == side).any():
            raise CoterieError(f"{where.name} has no row for {side} in its column of splits: give some.")
    return parts


def folders_of_parts(root: Path) -> dict[str, Path]:
    """The folders called ``train``, ``validation`` and ``test``, or by another word for these, of a folder.

    Raises:
        CoterieError: two are for the same.
    """
    found: dict[str, Path] = {}
    for path in sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []:
        side = SIDE_OF.get(path.name.lower())
        if side in found:
            raise CoterieError(
                f"{root} has the folders {found[side].name} and {path.name}, both for {side}: merge them."
            )
        if side is not None:
            found[side] = path
    return {side: found[side] for side in WORDS if side in found}


WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
SIDE_OF = {word: side for side, words in WORDS.items() for word in words}
