"""Small sites with data of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from coterie.deploy.sitefile import SiteFile
from coterie.federation.schema import Feature, Schema

PATIENTS = Schema(
    classes=2,
    labels=["healthy", "sick"],
    target="state",
    features=[
        Feature(name="age", mean=50.0, std=10.0),
        Feature(name="sex", kind="category", values=["f", "m"]),
        Feature(name="pressure", mean=120.0, std=20.0, missing=True),
    ],
)
"""Columns of `patients`: four inputs, and one that says where the pressure is missing."""


def patients(n: int = 50, seed: int = 0) -> pd.DataFrame:
    """A table that fits `PATIENTS`; every tenth pressure is missing."""
    generator = np.random.default_rng(seed)
    pressure = generator.integers(90, 160, n).astype(str).astype(object)
    pressure[::10] = ""
    return pd.DataFrame(
        {
            "age": generator.integers(20, 80, n),
            "sex": generator.choice(["f", "m"], n),
            "pressure": pressure,
            "state": generator.choice(["healthy", "sick"], n),
        }
    )


def site(folder: Path, data: object, client: str = "a", **more: object) -> SiteFile:
    """A site with this section ``data:``, written to ``site.yaml`` and read again."""
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump({"client": client, "data": data, **more}))
    return SiteFile.read(path)


def patients_site(folder: Path, table: pd.DataFrame | None = None, client: str = "a", **data: object) -> SiteFile:
    """A site with a table of patients."""
    (patients() if table is None else table).to_csv(folder / "patients.csv", index=False)
    return site(folder, {"table": "patients.csv", **data}, client)
