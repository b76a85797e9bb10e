"""A guard's folds run on the engine of the run: on Ray every client decides as in the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_ray import FakeRay

import coterie
from coterie import Federation
from coterie.engines import ray as ray_engine
from toys import classified

CONFIG: dict[str, Any] = {
    "algorithms": ["local", "fedavg", "ditto"], "model": {"name": "mlp", "hidden": [4]}, "rounds": 2, "dtype": "float64",
    "training": {"epochs": 1, "batch_size": 4, "lr": 0.1}, "guard": {"folds": 2}, "threads": 1, "page": False,
}  # fmt: skip


def decided(folder: Path, **keys: Any) -> pd.DataFrame:
    """What each client keeps, and the evidence for it."""
    federation: Federation = classified((9, 8, 9, 10))
    return pd.read_csv(coterie.run(federation, output=folder, **CONFIG, **keys).directory / "guard.csv")


def test_folds_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    monkeypatch.setattr(ray_engine, "library", lambda: fake)
    monkeypatch.setattr(ray_engine, "_SPARE", [])
    here = decided(tmp_path / "here")
    there = decided(tmp_path / "there", engine="ray", ray={"actors": 2})
    assert len(here) == 8
    assert here["difference"].abs().max() > 0
    pd.testing.assert_frame_equal(here, there, check_exact=False, rtol=0, atol=1e-9)
    assert fake.started, "nothing ran on the cluster"
