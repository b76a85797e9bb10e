"""What a model that has learnt standardised targets answers, in the unit of the data: in every file and command."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error

import coterie
from coterie.errors import CoterieError
from coterie.federation import build_federation


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run on a table whose target is some millions, and its table."""
    folder = tmp_path_factory.mktemp("costs")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 2)).round(4)
    table = pd.DataFrame({"site": np.tile(["a", "b", "c"], 30), "x": x[:, 0], "z": 50 * x[:, 1]})
    table["cost"] = (1e6 * (4 + x[:, 0] - 0.5 * x[:, 1] + draw.normal(0, 0.05, 90))).round()
    table.to_csv(folder / "costs.csv", index=False)
    tree = {
        "federation": {"source": "table", "path": str(folder / "costs.csv"), "client": "site", "target": "cost"},
        "model": "linear", "algorithms": ["local", "fedavg", "fedem"], "rounds": 3, "seeds": [0], "report": "last",
        "training": {"epochs": 5, "batch_size": 8, "lr": 0.05}, "page": False, "metrics": ["r2"], "save_losses": True,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", coterie.CoterieWarning)
        result = coterie.run(tree, output=folder / "run")
    return result, table, build_federation(tree["federation"], seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedem"])
def test_a_run_measures_what_its_models_predict(costs: Any, algorithm: str) -> None:
    result, table, federation = costs
    rows = federation.test.rows(torch.arange(federation.test.total)).numpy()[: int(federation.test.n[0])]
    test = table.iloc[rows]
    said = coterie.predict(result.directory, "a", test.drop(columns="cost"), algorithm=algorithm)["cost"]
    measured = pd.read_parquet(result.directory / "clients.parquet")
    own = measured[(measured.algorithm == algorithm) & (measured.client == "a") & (measured.split == "test")]
    last = own[own["round"] == 3].set_index("metric")["value"]
    assert last["mse"] == pytest.approx(mean_squared_error(test.cost, said), rel=1e-5)
    assert last["mae"] == pytest.approx(mean_absolute_error(test.cost, said), rel=1e-5)
    assert last["r2"] > 0.8
    losses = coterie.runs.load_losses(coterie.runs.RunDirectory(result.directory), algorithm, "", 0)
    first = losses.values["absolute"][losses.owner == 0]
    validation = measured[
        (measured.algorithm == algorithm) & (measured.client == "a") & (measured.split == "validation")
    ]
    at_last = validation[validation["round"] == 3].set_index("metric")["value"]
    assert at_last["mae"] == pytest.approx(float(np.mean(first)), rel=1e-5)


def test_a_site_that_joins_is_answered_in_the_unit_of_its_data(costs: Any, tmp_path: Path) -> None:
    result, table, _ = costs
    harbour = table[table.site == "b"].drop(columns="site")
    harbour.to_csv(tmp_path / "harbour.csv", index=False)
    adapted = coterie.adapt(result.directory, tmp_path / "harbour.csv", ["newcomers.epochs=2"], output=tmp_path / "out")
    said = coterie.predict(tmp_path / "out", "harbour", tmp_path / "harbour.csv", algorithm="fedavg")["cost"]
    assert mean_absolute_error(harbour.cost, said) < 3e5
    row = next(row for row in adapted.rows if row["algorithm"] == "fedavg")
    assert row["metric"] == "mae"
    assert all(1e4 < value < 3e5 for value in row["curve"])


def test_newcomers_whose_targets_are_of_another_kind_are_refused(costs: Any, tmp_path: Path) -> None:
    result, _, federation = costs
    for name in federation.names:
        np.savez(tmp_path / f"{name}.npz", x=np.ones((9, 2), dtype=np.float32), y=np.arange(9.0))
    newcomers = {"federation": {"source": "npz", "path": str(tmp_path)}}
    with pytest.raises(
        CoterieError, match="The targets of the members were standardised, unlike those of the newcomers"
    ):
        coterie.adapt(result.directory, newcomers, output=tmp_path / "out")
