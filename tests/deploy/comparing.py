"""Compares what a deployed experiment leaves behind with what the simulation does."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file


def check_equal(deployed: Path, simulated: Path) -> None:
    """All numbers of two run directories are equal, but for the time they took."""
    for name in ("clients", "history"):
        keys = ["algorithm", "variant", "seed", "round", "phase", "split", "metric"] + ["client"] * (name == "clients")
        ours, theirs = (
            pd.read_parquet(path / f"{name}.parquet").set_index(keys).sort_index() for path in (deployed, simulated)
        )
        pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=0, atol=1e-8)
    ours, theirs = (json.loads((path / "summary.json").read_text())["rows"] for path in (deployed, simulated))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for key in mine.keys() - {"seconds"}:
            assert mine[key] == (pytest.approx(other[key]) if isinstance(other[key], float) else other[key]), key


def check_models(folder: Path, simulated: Path) -> None:
    """Each site holds the very model that the simulation has made for it."""
    for path in sorted((simulated / "models").glob("*/seed0/*.safetensors")):
        own = folder / path.stem / "models" / path.parent.parent.name / "seed0" / path.name
        ours, theirs = load_file(own), load_file(path)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert (ours[name] - tensor).abs().max() < 1e-8, (path, name)
