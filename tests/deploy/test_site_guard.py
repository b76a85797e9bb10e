"""The guard at real sites decides as the simulation does, on a few numbers of each site; no Flower is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from comparing import check_equal, check_models
from test_serving import EXPERIMENT, deployed, placed

import coterie

GUARDED: dict[str, Any] = {
    "algorithms": ["local", "fedavg", {"name": "fedora", "variant": "paper"}, "ditto"],
    "rounds": 2,
    "guard": {"folds": 2},
}  # fmt: skip


def check_guard(deployed: Path, simulated: Path) -> None:
    """Both tables say the same of every client."""
    ours, theirs = (pd.read_csv(path / "guard.csv") for path in (deployed, simulated))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=0, atol=1e-8)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "run"
    coterie.run({**EXPERIMENT, **GUARDED}, output=path)
    return path


def test_the_guard_decides_as_in_the_simulation(simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, _ = deployed(folder, **GUARDED)
    result = experiment.run_or_resume(tmp_path / "run", None)
    check_guard(tmp_path / "run", simulated)
    check_equal(tmp_path / "run", simulated)
    check_models(folder, simulated)
    assert result.remarks[0].startswith("Clients keep the model")
