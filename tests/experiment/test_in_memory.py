"""A federation in memory is run, told from others by its checksum, and gives frames and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie
from coterie import CoterieError, Federation

KEYS: dict[str, Any] = {
    "algorithms": ["local", "fedavg"], "model": "linear", "rounds": 2, "seeds": [0], "report": "last", "page": False,
    "training": {"epochs": 1},
}  # fmt: skip


def clients(seed: int = 0, count: int = 3, n: int = 30) -> dict[str, tuple[Any, Any]]:
    draw = np.random.default_rng(seed)
    found = {}
    for i in range(count):
        x = draw.normal(size=(n + i, 4))
        found[f"site-{i}"] = (x, (x @ np.ones(4) > 0).astype(int))
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Federation, coterie.Result]:
    federation = Federation.from_arrays(clients())
    return federation, coterie.run(federation, output=tmp_path_factory.mktemp("runs") / "run", **KEYS)


def test_arrays_become_a_federation() -> None:
    federation = Federation.from_arrays(clients(), validation=5, test=0.2, seed=3)
    assert federation.names == ("site-0", "site-1", "site-2")
    assert federation.validation.n.tolist() == [5, 5, 5]
    assert federation.test.n.tolist() == [6, 6, 6]
    assert federation.classes == 2
    of_first = torch.cat([federation.split(split).client(0)[0] for split in ("train", "validation", "test")])
    assert torch.equal(of_first.sort(0).values, torch.from_numpy(clients()["site-0"][0]).float().sort(0).values)
    regression = Federation.from_arrays({"a": (pd.DataFrame({"x": range(20)}), [0.5] * 20)})
    assert regression.train.client(0)[1].tolist() == [[0.5]] * 12
    timed = Federation.from_arrays({"a": (np.arange(20)[:, None], [0, 1] * 10)}, order={"a": range(20)})
    assert timed.test.client(0)[0].ravel().tolist() == [16.0, 17.0, 18.0, 19.0]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({}, {}, "gave no client"),
        ({"a": (np.ones((9, 2)), [0] * 8)}, {}, "client 'a': there must be one target for each input"),
        (
            {"a": ([[1.0]] * 9, [0, 1, 0] * 3), "b": ([[1.0, 2]] * 9, [0] * 9)},
            {},
            r"'b' has inputs of the kind .*\(2,\)",
        ),
        ({"a": ([["x"]] * 9, [0] * 9)}, {}, "client 'a': inputs and targets must be arrays of numbers"),
        ({"a": ([[1.0]] * 9, [-1, 0, 1] * 3)}, {}, "Client 'a' has the label -1"),
        ({"a": ([[1.0]] * 9, [0] * 9)}, {}, "has a single class"),
        ({"a": ([[1.0]] * 9, [0, 1, 0] * 3)}, {"test": 0}, "train and test must be above 0"),
        ({"a": ([[1.0]] * 9, [0, 1, 0] * 3)}, {"test": 1.5}, "more than the whole"),
        ({"a": ([[1.0]] * 9, [0, 1, 0] * 3)}, {"blocks": {}}, "blocks lack the client 'a'"),
        ({"a": ([[float("nan")]] * 9, [0, 1, 0] * 3)}, {}, "Client 'a' has NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_named(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Federation.from_arrays(given, **options)


def test_the_checksum_is_of_what_clients_own(ran: tuple[Federation, coterie.Result]) -> None:
    federation = ran[0]
    copied = {split: federation.split(split).client(0) for split in ("train", "test")}
    assert federation.digest == Federation.from_arrays(clients()).digest
    assert federation.digest != Federation.from_arrays(clients(1)).digest
    assert federation.digest != replace(federation, names=("a", "b", "c")).digest
    assert federation.select([0]).digest == federation.select([0, 1]).select([0]).digest
    assert len(copied["train"][0]) == 18


def test_frames_and_figures(ran: tuple[Federation, coterie.Result]) -> None:
    result = ran[1]
    assert result.summary["algorithm"].tolist() == ["local", "fedavg"]
    own = result.clients.query("algorithm == 'fedavg' and round == 2 and split == 'test' and metric == 'accuracy'")
    assert own["client"].tolist() == ["site-0", "site-1", "site-2"]
    assert own["value"].mean() == pytest.approx(result.summary["accuracy_mean"][1])
    assert {"algorithm", "round", "metric", "value"} <= set(result.history.columns)
    assert len(result.plot("curves", systems=("fedavg",)).axes) >= 1
    with pytest.raises(CoterieError, match="knows no 'pie': choose one of curves, gain"):
        result.plot("pie")
    with pytest.raises(CoterieError, match="knows no 'sead': choose one of systems, seed"):
        result.plot("gain", sead=1)


def test_a_run_is_resumed_with_the_same_federation_only(ran: tuple[Federation, coterie.Result]) -> None:
    federation, result = ran
    stored = coterie.load_config(result.directory / "config.yaml")
    assert stored.as_dict()["federation"] == {"source": "memory", "sha256": federation.digest, **_usual()}
    with pytest.raises(
        CoterieError, match=r"was given in Python, so it is in no file: .*coterie.resume\(directory, fed"
    ):
        coterie.resume(result.directory)
    with pytest.raises(CoterieError, match="not the one that this run began with"):
        coterie.resume(result.directory, federation=Federation.from_arrays(clients(1)))
    again = coterie.resume(result.directory, federation=federation)
    assert again.rows == result.rows


def _usual() -> dict[str, Any]:
    return {key: value for key, value in coterie.load_config(
        {"federation": {"source": "memory"}, "algorithms": ["local"]}
    ).as_dict()["federation"].items() if key not in ("source", "sha256")}  # fmt: skip


def test_keys_replace_those_of_the_source(tmp_path: Path) -> None:
    federation = {"source": "synthetic", "clients": 2, "examples": 20, "partition": {"rule": "natural"}}
    result = coterie.run({"federation": federation, **KEYS, "rounds": 9}, output=tmp_path / "run", rounds=1)
    assert coterie.load_config(result.directory / "config.yaml").rounds == 1
    with pytest.raises(CoterieError, match=r"federation.source is 'synthetic': leave one of them out"):
        coterie.Experiment(
            coterie.load_config({"federation": federation}), federation=Federation.from_arrays(clients())
        )
    with pytest.raises(
        CoterieError, match="normalise means nothing where source is memory, for the federation was div"
    ):
        coterie.load_config({"federation": {"source": "memory", "normalise": [0, 1]}})


def test_a_guard_of_what_is_in_memory(tmp_path: Path) -> None:
    federation = Federation.from_arrays(clients())
    result = coterie.run(federation, output=tmp_path / "run", guard={"folds": 2}, **KEYS)
    assert result.summary["label"].tolist() == ["local", "fedavg", "fedavg + guard"]
    weights = {name: range(1, 1 + len(data[0])) for name, data in clients().items()}
    weighed = Federation.from_arrays(clients(), weights=weights)
    with pytest.raises(CoterieError, match="guard compares models on examples that all count alike"):
        coterie.run(weighed, output=tmp_path / "weighed", guard={"folds": 2}, **KEYS)
