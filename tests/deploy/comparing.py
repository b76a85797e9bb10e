"""Compares what a deployed experiment leaves behind with what the simulation does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file


def check_equal(deployed: Path, simulated: Path) -> None:
    """All numbers of two run directories are equal, but for the time they took and what sites keep to themselves."""
    for name in ("clients", "history"):
        keys = ["algorithm", "variant", "seed", "round", "phase", "split", "metric"] + ["client"] * (name == "clients")
        ours, theirs = (
            told(pd.read_parquet(path / f"{name}.parquet")).set_index(keys).sort_index()
            for path in (deployed, simulated)
        )
        pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=0, atol=1e-8)
    ours, theirs = (json.loads((path / "summary.json").read_text())["rows"] for path in (deployed, simulated))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for key in mine.keys() - {"seconds"}:
            assert mine[key] == (pytest.approx(other[key]) if isinstance(other[key], float) else other[key]), key


def told(rows: pd.DataFrame) -> pd.DataFrame:
    """Without the clients' own numbers such as lambda_k, which leave no site."""
    rows = rows.astype({"metric": str})  # no category of what is left out
    return rows[~rows["metric"].isin(("lambda_k", "alpha"))]


def check_models(folder: Path, simulated: Path, algorithm: str = "") -> None:
    """Each site holds the very model that the simulation has made for it, by all methods or one."""
    for path in sorted((simulated / "models").glob(f"{algorithm}*/seed0/*.safetensors")):
        own = folder / path.stem / "models" / path.parent.parent.name / "seed0" / path.name
        ours, theirs = load_file(own), load_file(path)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert (ours[name] - tensor).abs().max() < 1e-8, (path, name)


def check_disturbed(deployed: Path, simulated: Path, sites: Path, algorithm: str) -> None:
    """What a method has come to is what it comes to where the clients that were left out of a round were absent.

    Their evaluation travels with the question that they have not answered, so that it may be missing.
    """
    keys = ["client", "round", "phase", "split", "metric"]
    ours, theirs = (
        frame[frame["algorithm"] == algorithm].set_index(keys)["value"].sort_index()
        for frame in (told(pd.read_parquet(path / "clients.parquet")) for path in (deployed, simulated))
    )
    failures = pd.read_csv(deployed / "failures.csv", keep_default_na=False)
    missed = {(row.client, row.round) for row in failures[failures["algorithm"] == algorithm].itertuples()}
    ever = {client for client, _ in missed}
    assert ours.index.difference(theirs.index).empty
    for (client, round, phase, split, metric), value in theirs.items():
        where = (client, round, phase, split, metric)
        if phase == "evaluate":
            mine = ours.get(where, np.nan)
            assert mine == pytest.approx(value, rel=0, abs=1e-8) or (
                np.isnan(mine) and (client, round + 1) in missed
            ), where
        elif "up" in metric or client not in ever:  # what a site has got that did not answer counts
            assert ours[where] == value, where
    for path in sorted((simulated / "servers").glob(f"{algorithm}*/*.pt")):
        mine, other = (
            torch.load(root / path.relative_to(simulated), weights_only=True) for root in (deployed, simulated)
        )
        check_near(mine["server"], other["server"])
    if algorithm != "local":  # all runs have that, and a site keeps one
        check_models(sites, simulated, algorithm)


def check_near(ours: Any, theirs: Any) -> None:
    """Two trees are equal to 1e-8."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            check_near(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            check_near(mine, other)
    elif isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    else:
        assert ours == theirs
