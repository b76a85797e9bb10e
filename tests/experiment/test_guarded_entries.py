"""The guard goes by methods, whatever the entries of a configuration call them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.federation import Federation
from coterie.reports import open_run
from coterie.reports.settings import read_config, settings_of

DITTO = "coterie.algorithms.ditto:Ditto"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guarded run of an alias, of a class by its module, and of one method twice."""
    draw = np.random.default_rng(0)
    inputs = {name: draw.normal(size=(30, 2)) for name in "ab"}
    folder = tmp_path_factory.mktemp("guarded") / "run"
    coterie.run(
        Federation.from_arrays({name: (rows, (rows[:, 0] > 0).astype(int)) for name, rows in inputs.items()}),
        algorithms=["heurfedamp", {"name": DITTO, "lambda": 0.1}, {"name": DITTO, "lambda": 2.0, "guard": False}],
        rounds=1, model="linear", page=False, guard={"folds": 2}, output=str(folder),
    )  # fmt: skip
    return folder


def test_the_folds_train_what_an_alias_or_a_module_stands_for(run: Path) -> None:
    decided = pd.read_csv(run / "guard.csv")
    found = decided[["algorithm", "variant"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(found) == [("fedamp", "heuristic+guard"), ("ditto", "lambda=0.1+guard")]


def test_each_system_has_the_settings_of_its_own_entry(run: Path) -> None:
    """Also one of two entries of a method, and a guarded one those of the system that it is made of."""
    opened = open_run(run)
    settings = settings_of(opened, read_config(opened))
    found = {system: own.get("algorithms.ditto.lambda") for system, own in settings.items()}
    assert found == {
        ("local", ""): None,
        ("fedamp", "heuristic"): None,
        ("fedamp", "heuristic+guard"): None,
        ("ditto", "lambda=0.1"): 0.1,
        ("ditto", "lambda=0.1+guard"): 0.1,
        ("ditto", "lambda=2.0"): 2.0,
    }
    assert not any(key.endswith(".guard") for own in settings.values() for key in own)  # no option of a method
