"""Metrics of examples that have weights: scikit-learn's with ``sample_weight``, client by client."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from coterie.evaluation.further import further, reasons

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12, "equal_nan": True}
BINARY = ("auroc", "auprc", "brier", "f1", "balanced_accuracy")
Reference = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


def balanced(y: np.ndarray, p: np.ndarray, w: np.ndarray) -> float:
    return float(sk.balanced_accuracy_score(y, p.argmax(1), sample_weight=w))


def calibrated(y: np.ndarray, p: np.ndarray, w: np.ndarray) -> float:
    cells = np.searchsorted(np.linspace(0, 1, 11)[1:-1], p[:, 1])
    bins = [cells == b for b in range(10)]
    return float(sum(abs((w[b] * (p[b, 1] - y[b])).sum()) for b in bins) / w.sum())


REFERENCES: dict[str, Reference] = {
    "auroc": lambda y, p, w: sk.roc_auc_score(y, p[:, 1], sample_weight=w),
    "auprc": lambda y, p, w: sk.average_precision_score(y, p[:, 1], sample_weight=w),
    "brier": lambda y, p, w: sk.brier_score_loss(y, p[:, 1], sample_weight=w),
    "f1": lambda y, p, w: sk.f1_score(y, p.argmax(1), sample_weight=w),
    "balanced_accuracy": balanced,
    "calibration": calibrated,
}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 40))
def test_two_classes(seed: int, k: int, n: int) -> None:
    draw = np.random.default_rng(seed)
    owners, y = draw.integers(0, k, n), draw.integers(0, 2, n)
    p = np.round(draw.uniform(size=n), draw.integers(1, 4))  # with ties
    w = draw.uniform(0.1, 5, n) * (draw.uniform(size=n) < 0.8)
    p = np.stack([1 - p, p], axis=1)
    found = further(tuple(REFERENCES), "classification", 2, p, y, owners, k, w)
    for name, reference in REFERENCES.items():
        for client in range(k):
            own = (owners == client) & (w > 0)
            defined = len(set(y[own].tolist())) == 2 or (name in ("brier", "calibration") and own.any())
            expected = reference(y[own], p[own], w[own]) if defined else math.nan
            if defined or name in ("auroc", "balanced_accuracy"):
                np.testing.assert_allclose(found[name][client], expected, err_msg=name, **EXACT)


def test_several_classes() -> None:
    draw = np.random.default_rng(0)
    n, k = 150, 3
    owners, y, w = draw.integers(0, k, n), draw.integers(0, 4, n), draw.uniform(0.1, 3, n)
    p = draw.dirichlet(np.ones(4), n).round(2)
    found = further(("auroc", "f1", "balanced_accuracy"), "classification", 4, p, y, owners, k, w)
    for client in range(k):
        own = owners == client
        each = [sk.roc_auc_score(y[own] == c, p[own, c], sample_weight=w[own]) for c in range(4)]
        np.testing.assert_allclose(found["auroc"][client], np.mean(each), **EXACT)
        f1 = sk.f1_score(y[own], p[own].argmax(1), average="macro", sample_weight=w[own])
        np.testing.assert_allclose(found["f1"][client], f1, **EXACT)
        np.testing.assert_allclose(found["balanced_accuracy"][client], balanced(y[own], p[own], w[own]), **EXACT)


def test_numbers() -> None:
    draw = np.random.default_rng(0)
    n, k = 60, 3
    owners, w = draw.integers(0, k, n), draw.uniform(0.1, 3, n)
    w[:9] = 0.0
    z = draw.normal(size=(n, 2))
    y = z + draw.normal(size=(n, 2))
    found = further(("mae:1", "rmse:0", "r2", "r2:1"), "regression", 2, y, z, owners, k, w)
    for client in range(k):
        own = owners == client
        weigh = {"sample_weight": w[own]}
        expected = {
            "mae:1": sk.mean_absolute_error(z[own, 1], y[own, 1], **weigh),
            "rmse:0": sk.root_mean_squared_error(z[own, 0], y[own, 0], **weigh),
            "r2": sk.r2_score(z[own], y[own], **weigh),
            "r2:1": sk.r2_score(z[own, 1], y[own, 1], **weigh),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][client], value, err_msg=name, **EXACT)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_ones_change_nothing_and_zeros_are_not_there(task: Any) -> None:
    draw = np.random.default_rng(2)
    n, k = 40, 4
    owners = draw.integers(0, k, n)
    if task == "classification":
        names: tuple[str, ...] = tuple(REFERENCES)
        targets: np.ndarray = draw.integers(0, 2, n)
        predicted = draw.dirichlet(np.ones(2), n)
    else:
        names, targets, predicted = ("r2", "rmse"), draw.normal(size=(n, 1)), draw.normal(size=(n, 1))
    classes = predicted.shape[1]
    plain = further(names, task, classes, predicted, targets, owners, k)
    ones = further(names, task, classes, predicted, targets, owners, k, np.ones(n))
    w = (np.arange(n) % 3 > 0).astype(float)
    some = further(names, task, classes, predicted, targets, owners, k, w)
    there = w > 0
    without = further(names, task, classes, predicted[there], targets[there], owners[there], k)
    for name in names:
        np.testing.assert_array_equal(ones[name], plain[name])
        np.testing.assert_array_equal(some[name], without[name])
        assert not np.array_equal(some[name], plain[name])


def test_a_class_that_weighs_nothing_is_not_there() -> None:
    y, owners, w = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), np.array([1.0, 0.0, 1.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = np.array([[0.4, 0.6]] * 4)
        found = further(BINARY, "classification", 2, p, y, owners, 2, w)
    assert [math.isnan(found[name][0]) for name in BINARY] == [True, True, False, True, True]
    told = reasons(BINARY, "classification", 2, y, owners, 2, "test", w)
    assert told["auroc"] == {0: "only class 0 in its test data"}
    assert reasons(BINARY, "classification", 2, y, owners, 2, "test") == {}
