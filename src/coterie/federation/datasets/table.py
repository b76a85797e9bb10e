"""Tables in CSV files, also gzip-compressed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A table with a header line, whose values are text still; ``columns`` must be among its columns.

    Raises:
        CoterieError: the file is truncated or damaged, is empty or lacks a column.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    # pandas reports empty and malformed files by kinds of ValueError
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CoterieError(f"{path} is truncated, damaged or no table ({error}). Download or copy it again.") from error
    if missing := [column for column in columns if column not in table.columns]:
        raise CoterieError(
            f"{path} has no column {missing[0]!r}; its columns are {', '.join(table.columns[:6])}, ... Replace it by "
            "the published file."
        )
    if table.empty:
        raise CoterieError(f"{path} has a header and no rows. Download or copy it again.")
    return table


def numbers(table: pd.DataFrame, columns: Sequence[str], path: Path) -> NDArray[np.float64]:
    """Some columns as finite numbers, ``(N, len(columns))``.

    Raises:
        CoterieError: names the first value that is no number, by line and column.
    """
    import pandas as pd

    values = np.stack(
        [pd.to_numeric(table[column], errors="coerce").to_numpy(np.float64) for column in columns], axis=1
    )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = int(bad[0, 0]), columns[int(bad[0, 1])]
        raise CoterieError(
            f"{path}, line {row + 2}: {table[column].iloc[row]!r} in the column {column!r} is no finite number. "
            "Correct it, or replace the file by the published one."
        )
    return values
