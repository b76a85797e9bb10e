"""Small tables of a user's own, written on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.federation import Federation, build_federation

HOSPITALS = ("north", "south", "west")


def patients(each: int = 20) -> pd.DataFrame:
    """So many patients at each of three hospitals: age, ward, dose, sick (text), stay (a number), patient and day."""
    draw = np.random.default_rng(0)
    n = 3 * each
    age = draw.integers(20, 90, n)
    return pd.DataFrame(
        {
            "hospital": np.tile(HOSPITALS, each),
            "age": age,
            "ward": draw.choice(["a", "b"], n),
            "dose": draw.normal(5, 2, n).round(2),
            "sick": np.where(age > 55, "yes", "no"),
            "stay": draw.uniform(1, 9, n).round(3),
            "patient": [f"p{i // 6}" for i in range(n)],
            "day": pd.date_range("2024-01-01", periods=n).astype(str)[::-1],
        }
    )


SECTION: dict[str, Any] = {
    "source": "table", "path": "patients.csv", "client": "hospital", "target": "sick",
    "ignore": ["stay", "patient", "day"],
}  # fmt: skip


def built(folder: Path, table: pd.DataFrame | str, like: dict[str, Any] | None = None, **keys: Any) -> Federation:
    """The federation of a table, maybe encoded like another one; keys that are None are left out of the section."""
    text = table if isinstance(table, str) else table.to_csv(index=False)
    (folder / "patients.csv").write_text(text)
    section = {key: value for key, value in {**SECTION, **keys}.items() if value is not None}
    return build_federation(section, seed=0, data_dir=folder, like=like)
