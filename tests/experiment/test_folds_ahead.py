"""A guard whose folds cannot be had says so before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.federation import Federation

QUICK: dict[str, Any] = {"algorithms": ["local", "fedavg"], "rounds": 1, "model": "linear", "page": False}


def clients(each: int, regression: bool = False) -> dict[str, Any]:
    inputs = np.arange(2.0 * each).reshape(each, 2)
    targets = inputs[:, :1] if regression else np.arange(each) % 2
    return dict.fromkeys("ab", (inputs, targets))


@pytest.mark.parametrize(
    ("federation", "more", "reason"),
    [
        (Federation.from_arrays(clients(2), validation=0), {"report": "last"}, "no client has an example to validate"),
        (Federation.from_arrays(clients(10, regression=True), test=5), {"metric": "r2"}, "r2 is undefined for every"),
    ],
    ids=["nobody validates", "one example each"],
)
def test_folds_that_cannot_be_had(tmp_path: Path, federation: Federation, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(CoterieError, match=rf"guard.folds: 5 cannot be had with these data: in fold \d, .*{reason}"):
        coterie.run(federation, guard=True, output=str(tmp_path / "run"), **QUICK, **more)
    assert not (tmp_path / "run").exists()


def test_a_class_of_a_single_row_is_not_trained_in_its_fold(tmp_path: Path) -> None:
    rows = pd.DataFrame({"client": ["a"] * 24 + ["b"] * 24, "x": np.arange(48.0), "y": ["yes", "no"] * 24})
    rows["part"] = np.where(np.arange(48) % 4 < 2, "train", "test")
    rows.loc[0, "y"] = "seldom"
    rows.to_csv(tmp_path / "table.csv", index=False)
    source = {"source": "table", "path": "table.csv", "client": "client", "target": "y", "split": "part"}
    config = {"federation": source, "guard": {"folds": 2}, "output": str(tmp_path / "run"), **QUICK}
    with pytest.raises(CoterieError, match=r"in fold \d, .*'seldom'.* list all classes under labels .*guard.folds"):
        coterie.run(config, data_dir=tmp_path)
