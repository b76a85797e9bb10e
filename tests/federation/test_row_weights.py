"""Rows that count more than others: how weights are read, refused, and carried along with the examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import built, patients

from coterie.engines.joined import join_data
from coterie.engines.shares import members
from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.federation.arrays import examples_of_federation
from coterie.federation.federation import SPLITS

WEIGHTS = [1.0, 2.0, 4.0]


def weighed(values: object) -> pd.DataFrame:
    return patients().assign(w=values)


def test_weights_have_mean_one_over_a_clients_training_rows_and_are_no_feature(tmp_path: Path) -> None:
    values = np.random.default_rng(1).uniform(0, 9, 60)
    plain = built(tmp_path, patients())
    federation = built(tmp_path, weighed(values), weights="w")
    assert federation.feature_shape == plain.feature_shape
    assert federation.source["schema"] == plain.source["schema"]  # statistics of features count every row once
    assert federation.train.n.tolist() == plain.train.n.tolist()
    torch.testing.assert_close(federation.train.sizes, federation.train.n.double(), rtol=0, atol=1e-12)
    for split in SPLITS:
        data = federation.split(split)
        assert data.weights is not None
        rows = data.rows(torch.arange(data.total)).numpy()
        ratio = data.weights.numpy() / values[rows]
        for client, train in zip(range(3), federation.train.offsets.tolist(), strict=False):
            own = ratio[int(data.offsets[client]) : int(data.offsets[client + 1])]
            first = federation.train.rows(torch.tensor([train]))
            factor = float(federation.train.weights[train]) / values[int(first)]  # type: ignore[index]
            np.testing.assert_allclose(own, factor, rtol=1e-12)


def test_equal_weights_of_any_unit_are_exactly_one(tmp_path: Path) -> None:
    federation = built(tmp_path, weighed(0.1), weights="w")
    for split in SPLITS:
        weights = federation.split(split).weights
        assert weights is not None
        assert set(weights.tolist()) == {1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", r"line 3: the column 'w' \(federation.weights\) is empty, as in 1 of 60 rows: give every row a weight"),
        ("-1", r"line 3: '-1' in the column 'w' \(federation.weights\) is no weight"),
        ("inf", r"line 3: 'inf' in the column 'w' \(federation.weights\) is no weight"),
        ("much", r"line 3: 'much' in the column 'w' \(federation.weights\) is no weight"),
    ],
)
def test_what_is_no_weight_is_refused_with_its_row(tmp_path: Path, value: str, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        built(tmp_path, weighed(["1", value] + ["1"] * 58), weights="w")


def test_a_client_needs_something_that_counts_in_every_part(tmp_path: Path) -> None:
    table = weighed(1.0)
    table["part"] = np.where(np.arange(60) < 15, "test", "train")
    table["w"] = np.where((table.hospital == "south") & (table.part == "train"), 0.0, 1.0)
    with pytest.raises(CoterieError, match="Client 'south' has no training row with a weight above 0"):
        built(tmp_path, table, weights="w", split="part")
    table["w"] = np.where((table.hospital == "west") & (table.part == "test"), 0.0, 1.0)
    with pytest.raises(CoterieError, match="Client 'west' has no test example with a weight above 0"):
        built(tmp_path, table, weights="w", split="part")


def test_weights_are_a_part_of_what_a_federation_is(tmp_path: Path) -> None:
    values = np.arange(1, 61)
    one, other = (built(tmp_path, weighed(v), weights="w") for v in (values, values[::-1]))
    assert one.digest != other.digest
    assert one.digest == built(tmp_path, weighed(2 * values), weights="w").digest


def given(weights: dict[str, list[float]] | None) -> Federation:
    clients = {name: (np.arange(9.0).reshape(3, 3) + i, np.array([0, 1, 0])) for i, name in enumerate("ab")}
    return Federation.from_arrays(clients, validation=0, test=1, weights=weights)


def test_arrays_come_with_weights() -> None:
    federation = given({"a": WEIGHTS, "b": [3.0, 3.0, 3.0]})
    data = federation.train
    assert data.weights is not None
    rows = data.rows(torch.arange(4)).numpy()
    own = np.array([*WEIGHTS, 3.0, 3.0, 3.0])[rows]
    expected = np.concatenate([own[:2] / own[:2].mean(), [1.0, 1.0]])
    assert data.weights.tolist() == expected.tolist()
    with pytest.raises(CoterieError, match="from_arrays: weights lack the client 'b'"):
        given({"a": WEIGHTS})
    with pytest.raises(CoterieError, match="from_arrays: weights must be finite numbers that are not negative"):
        given({"a": WEIGHTS, "b": [1.0, -1.0, 1.0]})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": WEIGHTS, "b": [1.0, 1.0]}, "weights of client 'b' are 2, but it has 3 examples"),
        ({"a": [*WEIGHTS, 1.0], "b": [1.0, 1.0]}, "weights of client 'a' are 4, but it has 3 examples"),
        ({"a": WEIGHTS, "b": 1.0}, "weights of client 'b' are no list, but it has 3 examples"),
        ({"a": WEIGHTS, "b": {"train": WEIGHTS}}, "weights of client 'b' are no list, but it has 3 examples"),
        ({"a": WEIGHTS, "b": WEIGHTS, "c": WEIGHTS}, "weights name 'c', which is no client"),
    ],
)
def test_every_client_has_a_weight_for_each_of_its_examples(weights: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        given(weights)


def test_listed_clients_have_listed_weights() -> None:
    pair = np.arange(9.0).reshape(3, 3), np.array([0, 1, 0])
    found = [
        Federation.from_arrays([pair, pair], validation=0, test=1, weights=weights)
        for weights in ([WEIGHTS, WEIGHTS], {0: WEIGHTS, 1: WEIGHTS}, np.array([WEIGHTS, WEIGHTS]))
    ]
    assert len({federation.digest for federation in found}) == 1


def test_weights_as_large_as_numbers_can_be() -> None:
    large, same = given({"a": [1e308, 1.5e308, 1e308], "b": WEIGHTS}), given({"a": [2.0, 3.0, 2.0], "b": WEIGHTS})
    assert large.train.weights is not None
    assert same.train.weights is not None
    np.testing.assert_allclose(large.train.weights, same.train.weights, rtol=1e-14)


def test_weights_go_with_their_examples_wherever_they_go() -> None:
    federation = given({"a": WEIGHTS, "b": [5.0, 1.0, 2.0]})
    whole = federation.train
    assert whole.weights is not None
    for chosen in ([1], [1, 0], [0, 1], [1, 1]):
        part = whole.select(chosen)
        assert part.weights is not None
        assert part.weights.tolist() == [w for c in chosen for w in whole.weights[2 * c : 2 * c + 2].tolist()]
        assert part.sizes.tolist() == pytest.approx([2.0] * len(chosen), abs=1e-12)
    alone = members(federation, range(1, 2)).train
    assert alone.weights is not None
    assert alone.weights.tolist() == whole.weights[2:].tolist()
    joint = join_data([whole, given(None).train, alone])
    assert joint.weights is not None
    assert joint.weights.tolist() == [*whole.weights.tolist(), *[1.0] * 4, *alone.weights.tolist()]


def test_a_federation_as_examples_keeps_its_weights() -> None:
    made = given({"a": WEIGHTS, "b": [5.0, 1.0, 2.0]})
    found = examples_of_federation("python", made).weights
    assert found is not None
    expected = [made.split(part).select([i]).weights for i in range(2) for part in ("train", "test")]
    assert found.tolist() == [w for own in expected if own is not None for w in own.tolist()]


def test_wrong_weights_of_a_federation_made_by_hand_are_refused() -> None:
    federation = given(None)
    bad = replace(federation, train=replace(federation.train, weights=torch.tensor([1.0, -1.0, 1.0, 1.0]).double()))
    with pytest.raises(CoterieError, match="Client 'a' has a weight in its train data that is negative or not finite"):
        bad.validate()
    with pytest.raises(CoterieError, match="There are 4 examples but 1 weights"):
        replace(federation.train, weights=torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(("value", "shown"), [(-1.5, "-1.5"), (True, "True")])
def test_a_frame_quotes_its_cells_as_they_are_written(value: Any, shown: str) -> None:
    with pytest.raises(CoterieError, match=rf"row 0: {shown} in the column 'w' \(federation.weights\) is no weight"):
        Federation.from_frame(weighed(value), client="hospital", target="sick", weights="w", ignore=["day"])
