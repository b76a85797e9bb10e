"""Which metrics a task has, and whose data leave them without a value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.evaluation import BestRound, further_metrics, gain_scale, metric_of, title_of
from coterie.evaluation.further import further, reasons
from coterie.evaluation.summary import relative_key

BINARY = ("auroc", "auprc", "f1", "balanced_accuracy", "brier", "calibration")
NAN = math.nan


def test_what_is_measured_without_being_asked_for() -> None:
    assert further_metrics("auto", None, "classification", 2) == BINARY
    assert further_metrics("auto", None, "classification", 10) == ()
    assert further_metrics("auto", None, "regression", 3) == ("rmse", "r2")


def test_what_is_asked_for_and_what_is_reported() -> None:
    assert further_metrics([], None, "classification", 2) == ()
    assert further_metrics(["accuracy", "f1"], "auroc", "classification", 3) == ("f1", "auroc")
    assert further_metrics(["mae:1", "r2:0", "mae"], "rmse", "regression", 2) == ("mae:1", "r2:0", "rmse")


@pytest.mark.parametrize(
    ("asked", "classes", "sentence"),
    [
        (["auprc"], 3, "no auprc for a multi-class classification: choose among loss, accuracy, auroc, f1, bal"),
        (["rmse"], 2, "no rmse for a binary classification"),
        (["auroq"], 2, "There is no metric auroq: did you mean auroc"),
        (["auroc:1"], 2, "auroc has no values for single targets"),
    ],
)
def test_metrics_that_there_are_not(asked: list[str], classes: int, sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        further_metrics(asked, None, "classification", classes)


def test_a_target_that_there_is_not() -> None:
    with pytest.raises(CoterieError, match="mae:2 names no target: the regression has the targets 0 to 1"):
        further_metrics(["mae:2"], None, "regression", 2)


def test_gains_and_names() -> None:
    assert [gain_scale(name) for name in ("accuracy", "auroc", "mae", "brier", "r2")] == [100, 100, -1, -1, 1]
    assert [relative_key(name) for name in ("auroc", "mae", "rmse", "r2")] == ["r_acc", "r_mae", "r_rmse", None]
    assert (title_of("auroc"), title_of("mae:1"), title_of("mean_entropy")) == ("AUROC", "MAE (1)", "mean_entropy")
    assert metric_of("r2:3").larger_is_better


@pytest.mark.parametrize(
    ("metric", "possible", "impossible"),
    [
        ("accuracy", [0.0, 1.0, 1 + 1e-12, np.nan], [-0.1, 1.1, np.inf]),
        ("mae:0", [0.0, 1e9], [-0.1, -np.inf]),
        ("r2", [-1e9, 1.0], [1.1]),
    ],
)
def test_values_that_a_metric_can_have(metric: str, possible: list[float], impossible: list[float]) -> None:
    assert all(metric_of(metric).can_be(value) for value in possible)
    assert not any(metric_of(metric).can_be(value) for value in impossible)


def test_every_value_is_there_or_has_a_reason() -> None:
    """Clients: both classes, class 0 only, class 1 only, nothing."""
    owners = np.array([0, 0, 1, 1, 2, 2])
    targets = np.array([0, 1, 0, 0, 1, 1])
    p = np.array([0.2, 0.7, 0.1, 0.6, 0.9, 0.4])
    values = further(BINARY, "classification", 2, np.stack([1 - p, p], axis=1), targets, owners, 4)
    why = reasons(BINARY, "classification", 2, targets, owners, 4, "test")
    zero, one, none = "only class 0 in its test data", "only class 1 in its test data", "no test data"
    assert why == {
        "auroc": {1: zero, 2: one, 3: none},
        "auprc": {1: zero, 3: none},
        "f1": {1: zero, 3: none},
        "balanced_accuracy": {1: zero, 2: one, 3: none},
        "brier": {3: none},
        "calibration": {3: none},
    }
    for name in BINARY:
        assert np.flatnonzero(np.isnan(values[name])).tolist() == sorted(why[name])


def test_multi_class_reasons() -> None:
    owners, targets = np.array([0, 0, 1]), np.array([0, 2, 2])
    names = ("auroc", "f1", "balanced_accuracy")
    values = further(names, "classification", 3, np.eye(3), targets, owners, 2)
    why = reasons(names, "classification", 3, targets, owners, 2, "validation")
    assert why == {name: {1: "only class 2 in its validation data"} for name in ("auroc", "balanced_accuracy")}
    assert np.isfinite(values["f1"]).all()


def test_regression_reasons() -> None:
    owners = np.array([0, 0, 1, 1, 2])
    targets = np.array([[1.0, 5], [2, 6], [3, 7], [3, 8], [4, 9]])
    names = ("rmse", "r2", "r2:0", "r2:1", "mae:1")
    values = further(names, "regression", 2, targets + 1, targets, owners, 3)
    assert reasons(names, "regression", 2, targets, owners, 3, "test") == {
        "r2": {1: "target 0 is always the same in its test data", 2: "target 0 is always the same in its test data"},
        "r2:0": {1: "target 0 is always the same in its test data", 2: "target 0 is always the same in its test data"},
        "r2:1": {2: "target 1 is always the same in its test data"},
    }
    np.testing.assert_allclose(values["rmse"], 1)
    np.testing.assert_allclose(values["mae:1"], 1)
    np.testing.assert_allclose(values["r2"], [-3, NAN, NAN])  # errors of 1 against deviations of 1/2
    alone = reasons(("r2",), "regression", 1, targets[:, :1], owners, 3, "test")
    assert alone["r2"][1] == "its test targets are all the same"


def test_a_prediction_that_is_not_finite_leaves_the_other_clients_alone() -> None:
    owners, targets = np.array([0, 0, 1, 1]), np.array([1, 0, 1, 0])
    p = np.array([[NAN, NAN], [0.8, 0.2], [0.2, 0.8], [0.9, 0.1]])
    for name, values in further(BINARY, "classification", 2, p, targets, owners, 2).items():
        assert np.isnan(values[0]), name
        assert np.isfinite(values[1]), name


def test_clients_without_a_value_do_not_count_in_the_choice_of_the_round() -> None:
    best = BestRound("auroc")
    assert best.offer(1, [NAN, 0.6])
    assert not best.offer(2, [NAN, 0.5])
    assert best.offer(3, [NAN, 0.7])
    assert (best.round, best.score) == (3, 0.7)
    nobody = BestRound("auroc")
    assert not nobody.offer(1, [NAN, NAN])
    assert nobody.round is None
