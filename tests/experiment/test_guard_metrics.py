"""Every metric in which a run can be reported has a loss by which the guard compares models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.evaluation.catalogue import METRICS
from coterie.experiment.guarding import loss_of
from coterie.federation import Federation


def guarded(folder: Path, metric: str) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    inputs = {name: draw.normal(size=(30, 2)) for name in "ab"}
    regression = "regression" in METRICS[metric.partition(":")[0]].kinds
    targets = {
        name: x * [1e3, 1.0] if regression else (x[:, 0] > 0).astype(int) + (x[:, 1] > 0) for name, x in inputs.items()
    }
    coterie.run(
        Federation.from_arrays({name: (inputs[name], targets[name]) for name in inputs}),
        algorithms=["local", "fedavg"], rounds=1, model="linear", page=False, metric=metric, guard={"folds": 2},
        training={"lr": 1e-4 if regression else 0.1}, output=str(folder / metric.replace(":", "")),
    )  # fmt: skip
    return pd.read_csv(folder / metric.replace(":", "") / "guard.csv")


@pytest.mark.parametrize("metric", ["auroc", "mse", "mae:1"])
def test_the_guard_is_to_be_had_with_metrics_of_all_kinds(tmp_path: Path, metric: str) -> None:
    assert np.isfinite(guarded(tmp_path, metric)["difference"]).all()


def test_no_metric_lacks_a_loss() -> None:
    assert {metric for metric in METRICS if loss_of(metric, True) is None} == {"auroc", "auprc"}
    assert all(loss_of(metric, False) for metric in METRICS)
