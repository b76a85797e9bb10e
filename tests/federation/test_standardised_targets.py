"""Targets of a regression, standardised by what the training rows of all clients say together."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import built, patients

from coterie.errors import CoterieError, CoterieWarning
from coterie.federation import Federation
from coterie.federation.arrays import examples_of_federation
from coterie.federation.schema import Feature, Schema

COSTS: dict[str, Any] = {"target": ["cost", "stay"], "ignore": ["sick", "patient", "day"]}


def costly(scale: float = 1e6) -> pd.DataFrame:
    draw = np.random.default_rng(5)
    return patients().assign(cost=lambda rows: scale * (3 + rows["age"] / 50 + draw.normal(0, 0.1, len(rows))))


def raw(federation: Federation, table: pd.DataFrame, split: Any) -> np.ndarray:
    data = federation.split(split)
    return table[["cost", "stay"]].to_numpy()[data.rows(torch.arange(data.total)).numpy()]


@pytest.mark.parametrize("preprocessing", ["federated", "client"])
def test_they_are_learnt_less_their_mean_by_their_deviation(tmp_path: Path, preprocessing: str) -> None:
    table = costly()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody warns of large targets
        federation = built(tmp_path, table, preprocessing=preprocessing, **COSTS)
    train = raw(federation, table, "train")
    mean, std = train.mean(0), train.std(0)
    for split in ("train", "validation", "test"):
        data, own = federation.split(split), raw(federation, table, split)
        np.testing.assert_allclose(data.targets[data.rows(torch.arange(data.total))], own, rtol=1e-6)
        _, targets = data.batch(torch.arange(data.total))
        np.testing.assert_allclose(targets, (own - mean) / std, rtol=0, atol=1e-5)
        assert data.target_normal is not None
        np.testing.assert_allclose(data.target_normal.undone(targets), own, rtol=1e-6)
    source = federation.source
    for schema in [source["schema"]] if "schema" in source else source["schemas"].values():
        np.testing.assert_allclose(schema["target_mean"], mean, rtol=1e-13)
        np.testing.assert_allclose(schema["target_std"], std, rtol=1e-13)


@pytest.mark.parametrize("preprocessing", ["federated", "client"])
def test_what_it_takes_is_booked(tmp_path: Path, preprocessing: str) -> None:
    table = costly(1.0)
    on, off = (
        built(tmp_path, table, preprocessing=preprocessing, standardise_targets=value, **COSTS)
        for value in (True, False)
    )
    assert on.preparation is not None
    assert off.preparation is not None
    for client, own in enumerate(np.split(raw(on, table, "train"), on.train.offsets[1:-1])):
        sums = {}
        for name, values in zip(("cost", "stay"), own.T, strict=True):
            total = math.fsum(values)
            sums[name] = [len(values), total, math.fsum((values - total / len(values)) ** 2), 0]
        more = int(on.preparation.bytes_up[client] - off.preparation.bytes_up[client])
        assert more == len(json.dumps(sums, separators=(",", ":"))) - 1  # a comma for two braces
    schema = next(iter(on.source["schemas"].values())) if preprocessing == "client" else on.source["schema"]
    told = {key: schema[key] for key in ("target_mean", "target_std")}
    down = on.preparation.bytes_down - off.preparation.bytes_down
    assert set(down.tolist()) == {len(json.dumps(told, separators=(",", ":"))) - 1}


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        ({"preprocessing": "none"}, "preprocessing: federated, which"),
        ({"standardise_targets": False}, "standardise_targets: true,"),
    ],
    ids=str,
)
def test_where_they_are_not_standardised_large_ones_are_told_of(
    tmp_path: Path, keys: dict[str, Any], remedy: str
) -> None:
    with pytest.warns(CoterieWarning, match=rf"'cost' is about 4,\d{{3}}.* Say {remedy} .*divide"):
        federation = built(tmp_path, costly(1e3), **COSTS, features=["age"], **keys)
    assert federation.train.target_normal is None
    assert "target_mean" not in federation.source["schema"]


def test_a_target_that_is_always_the_same_is_not_blown_up(tmp_path: Path) -> None:
    federation = built(tmp_path, costly().assign(stay=7.0), **COSTS)
    schema = federation.source["schema"]
    assert schema["target_mean"][1] == 7.0
    assert schema["target_std"][1] == 1.0
    assert (federation.train.batch(torch.arange(3))[1][:, 1] == 0).all()


def test_another_table_follows_the_schema_of_the_first(tmp_path: Path) -> None:
    federation = built(tmp_path, costly(), **COSTS)
    other = built(tmp_path, costly(7.0), like={"schema": federation.source["schema"]}, **COSTS)
    for mine, its in zip(
        federation.source["schema"]["target_mean"], other.source["schema"]["target_mean"], strict=True
    ):
        assert mine == its
    assert other.train.target_normal is not None
    assert other.train.target_normal.mean.tolist() == federation.source["schema"]["target_mean"]
    plain = built(tmp_path, costly(7.0), standardise_targets=False, **COSTS)
    assert built(tmp_path, costly(7.0), like={"schema": plain.source["schema"]}, **COSTS).train.target_normal is None


def test_a_federation_as_examples_keeps_the_unit_and_the_scale(tmp_path: Path) -> None:
    federation = built(tmp_path, costly(), **COSTS)
    examples = examples_of_federation("python", federation)
    assert examples.target_normal is federation.train.target_normal
    assert float(examples.targets[:, 0].mean()) > 1e6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"target": "sick", "standardise_targets": True},
            "federation.standardise_targets: the target 'sick' is a class",
        ),
        ({"preprocessing": "none", "standardise_targets": True}, "standardise_targets needs sums of the targets"),
        ({"task": "classification", "standardise_targets": True}, "standardise_targets is for a regression"),
    ],
    ids=str,
)
def test_where_there_is_nothing_to_standardise_it_is_refused(tmp_path: Path, keys: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        built(tmp_path, patients(), **keys)


def test_a_schema_has_both_or_neither() -> None:
    one: dict[str, Any] = {"task": "regression", "classes": 1, "features": [Feature(name="x")]}
    with pytest.raises(ValueError, match="give both target_mean and target_std, or neither"):
        Schema(**one, target_mean=[1.0])
    with pytest.raises(ValueError, match="belong to a regression, one number a target"):
        Schema(**one, target_mean=[1.0, 2.0], target_std=[1.0, 1.0])
    with pytest.raises(ValueError, match="belong to a regression, one number a target"):
        Schema(classes=2, features=[Feature(name="x")], target_mean=[1.0, 1.0], target_std=[1.0, 1.0])


@pytest.mark.parametrize(
    ("scale", "shift", "message"),
    [
        (1e200, 0.0, "in the target 'cost' is too large to compute with"),
        (1e-60, 0.0, "The target 'cost', from .*, varies too little for the single precision"),
        (1.0, 1e9, "The target 'cost', from 100000000.* to 100000000.*, varies too little for the single precision"),
    ],
)
def test_single_precision_must_tell_them_apart(tmp_path: Path, scale: float, shift: float, message: str) -> None:
    table = costly(scale)
    table["cost"] += shift
    with pytest.raises(CoterieError, match=message):
        built(tmp_path, table, **COSTS)


@pytest.mark.parametrize("value", [0.1, 1e9 + 1])
def test_a_target_that_never_varies_is_no_matter_of_precision(tmp_path: Path, value: float) -> None:
    federation = built(tmp_path, costly().assign(cost=value), **COSTS)
    assert federation.source["schema"]["target_std"][0] == 1.0
