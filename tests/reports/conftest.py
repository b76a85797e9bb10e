"""A small finished run, made once, and copies of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import coterie

SMALL = {
    "name": "small",
    "federation": {"source": "digits", "partition": {"rule": "dominant", "clients": 4}, "train": 40, "test": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithms": ["local", "fedavg", "fedora", "feddwa"],
    "rounds": 4,
    "evaluate_every": 2,
    "seeds": [0, 1],
    "absent": {3: ["client-01"]},
    "processes": 1,
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "small"
    coterie.run(SMALL, output=path)
    return path


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """The same run, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))
