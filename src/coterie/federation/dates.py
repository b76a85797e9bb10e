"""Columns of dates, which are no features as they are: a text of each day would be a category, a time a huge number."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

LOOKED_AT = 100
"""So many different texts of a column are read as dates; if all are some, the column holds dates."""

YEAR = re.compile(r"(?<![0-9])[0-9]{4}(?![0-9])")


def holds_dates(column: pd.Series[Any]) -> bool:
    """Whether a column without gaps holds dates: of pandas' own type, or texts with a year that it reads as such.

    Dates such as ``2024-05-31``, ``2024-05``, ``31.05.2024`` or ``31 May 2024``, maybe with a time of day.
    """
    import pandas as pd

    if column.dtype.kind in "biufcM" or column.empty:
        return column.dtype.kind == "M" and not column.empty
    texts = pd.Series(column.astype(str).str.strip().unique()[:LOOKED_AT])
    if not texts.map(lambda text: YEAR.search(text) is not None).all():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether the day or the month comes first does not matter here
        return bool(pd.to_datetime(texts, format="mixed", errors="coerce", utc=True).notna().all())
