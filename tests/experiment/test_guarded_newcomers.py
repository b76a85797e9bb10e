"""Newcomers of a guarded run keep their personalised model or the one that they trained alone, as members do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.evaluation import Evidence, judge
from coterie.evaluation.guard import judge_newcomers
from coterie.reports import open_run
from coterie.reports.page import page
from coterie.runs import RunDirectory, load_losses

CONFIG: dict[str, Any] = {
    "name": "tiny", "model": {"name": "mlp", "hidden": [8]}, "training": {"epochs": 1, "batch_size": 4, "lr": 0.1},
    "federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 5}, "train": 12, "validation": 6,
                   "test": 10},
    "algorithms": ["local", "fedavg"], "rounds": 2, "threads": 1, "guard": {"folds": 2}, "page": False,
    "newcomers": {"clients": 2, "epochs": 2, "labelled": "both"},
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> coterie.Result:
    return coterie.run(CONFIG, output=tmp_path_factory.mktemp("guarded") / "run")


def table(folder: Path, system: str) -> pd.DataFrame:
    """A system's results by epoch and newcomer."""
    found = pd.read_csv(folder / system / "seed0.csv")
    return found[found["labelled"]].set_index(["metric", "epoch", "client"])["value"].unstack("client")


def test_each_newcomer_has_the_curve_and_the_model_that_it_keeps(ran: coterie.Result) -> None:
    folder = ran.directory / "newcomers"
    decided = pd.read_csv(folder / "guard.csv").set_index("client")
    assert len(decided) == 2
    sources = {name: {"local": "local", "personalised": "fedavg"}[keeps] for name, keeps in decided["keeps"].items()}
    for name, source in sources.items():
        own, kept = (table(folder, system).loc["accuracy", name] for system in (source, "fedavg-guard"))
        pd.testing.assert_series_equal(own, kept)
        models = folder / "labelled" / "models"
        stored = [
            (models / system / "seed0" / f"{name}.safetensors").read_bytes() for system in (source, "fedavg-guard")
        ]
        assert stored[0] == stored[1]
    cost = {system: table(folder, system).loc["bytes_down:model"].to_numpy() for system in ("fedavg", "fedavg-guard")}
    assert np.array_equal(*cost.values()), "LOCAL receives nothing"
    count = sum(source == "local" for source in sources.values())
    sentence = f"Newcomers keep the model that they trained alone: fedavg + guard {count} of 2 times."
    assert sentence in page(open_run(ran.directory))
    labels = [(row["label"], row["labelled"]) for row in ran.newcomers]
    assert labels == [("local", True), ("fedavg", True), ("fedavg", False), ("fedavg + guard", True)]


def test_they_are_judged_by_their_validation_examples_beside_the_members(ran: coterie.Result) -> None:
    place = RunDirectory(ran.directory / "newcomers" / "labelled")
    alone, own = (load_losses(place, system, "", 0) for system in ("local", "fedavg"))
    delta = pd.Series(alone.values["error"] - own.values["error"]).groupby(alone.owner).mean()
    decided = pd.read_csv(ran.directory / "newcomers" / "guard.csv")
    assert list(decided["client"]) == list(alone.names)
    assert (decided["n"] == 6).all()
    np.testing.assert_allclose(decided["difference"], delta)
    members = pd.read_csv(ran.directory / "guard.csv")
    found = [
        Evidence(rows["n"].to_numpy(), rows["difference"].to_numpy(), rows["standard_error"].to_numpy() ** 2)
        for rows in (decided, members)
    ]
    alone_judged = judge_newcomers(found[0], Evidence(*(np.zeros(0) for _ in range(3))), 0.7)  # type: ignore[arg-type]
    assert not np.allclose(alone_judged.confidence, decided["confidence"]), "the members say what gains are usual"


def test_a_later_joining_decides_the_same(ran: coterie.Result, tmp_path: Path) -> None:
    """The clients that were held out, after the run; without labels nothing is decided."""
    adapted = coterie.adapt(ran.directory, output=tmp_path / "adapted")
    first, second = (pd.read_csv(folder / "guard.csv") for folder in (ran.directory / "newcomers", adapted.directory))
    pd.testing.assert_frame_equal(first, second)
    count = int((first["keeps"] == "local").sum())
    assert f"fedavg + guard, seed 0: {count} of 2 newcomers keep the model that they trained alone" in adapted.remarks
    assert any("newcomers without labels have nothing to judge by" in remark for remark in adapted.remarks)
    unlabelled = coterie.adapt(ran.directory, overrides=["newcomers.labelled=false"], output=tmp_path / "unlabelled")
    assert not (unlabelled.directory / "guard.csv").exists()
    assert [row["label"] for row in unlabelled.rows] == ["fedavg"]


def evidence(n: list[int], difference: list[float], variance: list[float]) -> Evidence:
    return Evidence(np.array(n), np.array(difference), np.array(variance))


def test_a_newcomer_is_judged_as_one_more_client() -> None:
    """Its variance is drawn to the members' as if it had four of their examples; the rest is the rule of the run."""
    members = evidence([40, 40, 40], [0.1, 0.2, 0.0], [0.01, 0.02, 0.015])
    found = evidence([9], [0.3], [0.02])
    common = 40 * (0.01 + 0.02 + 0.015) / 3
    drawn = (8 * 9 * 0.02 + 4 * common) / 12 / 9
    expected = judge(evidence([40, 40, 40, 9], [0.1, 0.2, 0.0, 0.3], [0.01, 0.02, 0.015, drawn]), 0.7)
    judged = judge_newcomers(found, members, 0.7)
    assert judged.confidence == pytest.approx(expected.confidence[3:])
    assert judged.expected == pytest.approx(expected.expected[3:])


def test_few_examples_that_agree_are_no_certainty() -> None:
    """Three without any spread, one alone, and none: by what the members have, else the model of one's own."""
    members, nobody = evidence([40], [-0.1], [0.01]), evidence([], [], [])
    assert judge_newcomers(evidence([3], [0.4], [0.0]), members, 0.9).confidence[0] < 0.99
    assert not judge_newcomers(evidence([1], [1.0], [0.0]), nobody, 0.5).keep[0]
    assert not judge_newcomers(evidence([0], [np.nan], [np.nan]), members, 0.5).keep[0]
    assert judge_newcomers(evidence([0], [np.nan], [np.nan]), evidence([40], [0.1], [0.001]), 0.9).keep[0]
