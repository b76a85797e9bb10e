"""Where a user's own files are, and what tells one version of a file from another."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import CoterieError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Origin:
    """Where the rows of a table come from; called with the number of a row, it says where this is.

    Attributes:
        name: all of them together, such as the file.
        units: for each file its path, ``line`` or ``row`` and the number of its first row.
        starts: how many rows come before each file.
    """

    name: str
    units: Sequence[tuple[str, str, int]]
    starts: Sequence[int] = (0,)

    @classmethod
    def of(cls, name: str, tables: Mapping[Path, int]) -> Origin:
        """Tables by path, one after the other, with so many rows each."""
        units = [(str(path), *(("row", 1) if path.suffix.lower() == ".parquet" else ("line", 2))) for path in tables]
        return cls(name, units, [0, *accumulate(tables.values())][:-1])

    def __call__(self, row: int) -> str:
        """Where a row is, such as ``patients.csv, line 7``."""
        i = bisect_right(self.starts, row) - 1
        path, unit, first = self.units[i]
        return f"{path}, {unit} {row - self.starts[i] + first}"


def located(path: str, data_dir: Path | None) -> Path:
    """A file or folder as given or, where it is relative and not there, below the data directory.

    Raises:
        CoterieError: it is at neither place.
    """
    from coterie.federation.datasets.files import ENVIRONMENT, data_directory

    given = Path(path).expanduser()
    below = data_directory(data_dir) / given
    for place in (given, below):
        if place.exists():
            return place
    if given.is_absolute():
        raise CoterieError(f"federation.path: there is no {given}: correct the path.")
    raise CoterieError(
        f"federation.path: there is neither {given.absolute()} nor {below}: correct the path, or name another data "
        f"directory by --data-dir or {ENVIRONMENT}."
    )


def located_all(path: str, data_dir: Path | None) -> list[Path]:
    """The files of a folder, or those of a pattern such as ``wards/*.csv``, in the order of their names.

    Raises:
        CoterieError: there is no such folder; nothing that the pattern fits is no error.
    """
    from coterie.federation.datasets.files import data_directory

    if not any(sign in path for sign in "*?["):
        folder = located(path, data_dir)
        return sorted(child for child in folder.iterdir() if child.is_file()) if folder.is_dir() else [folder]
    given = Path(path).expanduser()
    places = [given.anchor] if given.is_absolute() else [".", str(data_directory(data_dir))]
    pattern = str(given.relative_to(given.anchor)) if given.is_absolute() else str(given)
    found = ([child for child in Path(place).glob(pattern) if child.is_file()] for place in places)
    return sorted(next((paths for paths in found if paths), []))


def sha256_of(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(table: pd.DataFrame) -> str:
    """SHA-256 of the values of a table that comes from no file."""
    import pandas as pd

    values = pd.util.hash_pandas_object(table.astype(str), index=False).to_numpy()
    return hashlib.sha256(values.tobytes()).hexdigest()
