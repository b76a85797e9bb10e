"""Clients that are held out add nothing to what the members' tables become inputs by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.config import parse_config
from coterie.errors import CoterieWarning
from coterie.experiment.experiment import Experiment

NAMES = ("north", "south", "west")


def visits() -> pd.DataFrame:
    """Twenty rows a hospital; those of the west are far off, have a ward of their own and gaps."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"hospital": np.tile(NAMES, 20), "age": draw.normal(50, 9, 60), "ward": "a"})
    table.loc[::2, "ward"] = "b"
    table["stay"] = 3e3 + table["age"]
    west = table.hospital == "west"
    table.loc[west, "age"] += 1000
    table.loc[west, "stay"] *= 1000
    table.loc[west, "ward"] = "c"
    table.loc[np.flatnonzero(west)[:4], "age"] = np.nan
    return table


def experiment(folder: Path, newcomers: Any, **keys: Any) -> Experiment:
    visits().to_csv(folder / "visits.csv", index=False)
    federation = {
        "source": "table", "path": str(folder / "visits.csv"), "client": "hospital", "target": "stay", "missing": "mark",
        **keys,
    }  # fmt: skip
    tree: dict[str, Any] = {"federation": federation, "model": "linear", "algorithms": ["local"], "rounds": 1}
    return Experiment(parse_config({**tree, "newcomers": newcomers}))


def test_statistics_are_the_members(tmp_path: Path) -> None:
    found = experiment(tmp_path, {"clients": ["west"]})
    with pytest.warns(CoterieWarning, match="The value 'c' of the column 'ward' at client 'west'"):
        members = found.federation(0)
    newcomers = found.newcomers(0)
    assert newcomers is not None
    assert (members.names, newcomers.names) == (NAMES[:2], ("west",))
    table = visits()
    train = table.iloc[members.train.rows(torch.arange(members.train.total)).numpy()]
    assert set(train.hospital) == {"north", "south"}
    for federation in (members, newcomers):
        schema = federation.source["schema"]
        age, ward = schema["features"]
        assert age["mean"] == pytest.approx(train.age.mean(), rel=1e-13)
        assert age["std"] == pytest.approx(train.age.std(ddof=0), rel=1e-13)
        assert "missing" not in age  # the members have no gaps
        assert ward["values"] == ["a", "b"]
        assert schema["target_mean"] == [pytest.approx(train.stay.mean(), rel=1e-13)]
        assert schema["target_std"] == [pytest.approx(train.stay.std(ddof=0), rel=1e-13)]
    own = table.iloc[newcomers.train.rows(torch.arange(newcomers.train.total)).numpy()]
    inputs, targets = newcomers.train.client(0)
    expected = ((own.age - train.age.mean()) / train.age.std(ddof=0)).fillna(0.0)
    np.testing.assert_allclose(inputs[:, 0], expected, rtol=1e-5)
    assert not inputs[:, 1:].any()
    np.testing.assert_allclose(targets[:, 0], (own.stay - train.stay.mean()) / train.stay.std(ddof=0), rtol=1e-5)
    assert members.preparation is not None
    assert newcomers.preparation is not None
    assert (members.preparation.bytes_up > 0).all()
    assert newcomers.preparation.bytes_up.tolist() == [0]
    assert newcomers.preparation.bytes_down.tolist() == members.preparation.bytes_down.tolist()[:1]


def test_where_each_client_has_its_own_a_newcomer_has_so_too(tmp_path: Path) -> None:
    found = experiment(tmp_path, {"clients": ["west"]}, preprocessing="client")
    with pytest.warns(CoterieWarning, match="The value 'c' of the column 'ward'"):
        members = found.federation(0)
    newcomers = found.newcomers(0)
    assert newcomers is not None
    assert newcomers.source["schemas"]["west"]["features"][0]["mean"] > 1000
    assert newcomers.source["schemas"]["west"]["features"][1]["values"] == ["a", "b"]
    targets = {schema["target_mean"][0] for f in (members, newcomers) for schema in f.source["schemas"].values()}
    assert len(targets) == 1
    assert max(targets) < 1e4


def test_newcomers_by_number_are_those_that_are_held_out(tmp_path: Path) -> None:
    found = experiment(tmp_path, {"clients": 1}, ignore=["ward"])
    members, newcomers = found.federation(0), found.newcomers(0)
    assert newcomers is not None
    table = visits()
    train = table.iloc[members.train.rows(torch.arange(members.train.total)).numpy()]
    assert newcomers.names[0] not in set(train.hospital)
    assert members.source["schema"]["features"][0]["mean"] == pytest.approx(train.age.mean(), rel=1e-13)
