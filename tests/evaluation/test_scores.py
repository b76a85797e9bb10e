"""Metrics of many clients at once: by hand, and against scikit-learn client by client."""

from __future__ import annotations

import math
import warnings
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from coterie.evaluation import scores

NAN = math.nan
EXACT = {"rtol": 0, "atol": 1e-12, "equal_nan": True}


@st.composite
def binary(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Scores with many ties, on bin edges too, of up to four clients in any order; some have one class or nothing."""
    k, n = draw(st.integers(1, 4)), draw(st.integers(0, 30))
    owners = np.array(draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)), dtype=np.int64)
    fine = st.one_of(st.integers(0, 10).map(lambda i: i / 10), st.floats(0, 1))
    values = np.array(draw(st.lists(fine, min_size=n, max_size=n)), dtype=np.float64)
    positive = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
    return values, positive, owners, k


def by_client(function, owners: np.ndarray, k: int, *columns: np.ndarray) -> np.ndarray:
    return np.array([function(*(column[owners == client] for column in columns)) for client in range(k)])


def if_both(function):
    return lambda y, p: function(y, p) if len(set(y.tolist())) == 2 else NAN


def ece(y: np.ndarray, p: np.ndarray) -> float:
    """From scikit-learn's curve, whose bins are the same."""
    if not len(y):
        return NAN
    share, mean = calibration_curve(y, p, n_bins=scores.BINS)
    sizes = np.bincount(np.searchsorted(np.linspace(0, 1, scores.BINS + 1)[1:-1], p), minlength=scores.BINS)
    return float((sizes[sizes > 0] * np.abs(share - mean)).sum() / len(y))


@settings(max_examples=30, deadline=None)
@given(binary())
def test_binary_metrics_equal_scikit_learn(drawn: tuple[np.ndarray, np.ndarray, np.ndarray, int]) -> None:
    values, positive, owners, k = drawn
    y, named = positive.astype(np.int64), (values > 0.5).astype(np.int64)
    some = lambda function: lambda y, p: function(y, p) if len(y) else NAN  # noqa: E731
    ones = lambda function: lambda y, p: function(y, p) if y.any() else NAN  # noqa: E731
    for found, reference in (
        (scores.auroc(values, positive, owners, k), by_client(if_both(sk.roc_auc_score), owners, k, y, values)),
        (scores.auprc(values, positive, owners, k), by_client(ones(sk.average_precision_score), owners, k, y, values)),
        (scores.brier(values, positive, owners, k), by_client(some(sk.brier_score_loss), owners, k, y, values)),
        (scores.calibration(values, positive, owners, k), by_client(ece, owners, k, y, values)),
        (scores.f1(named, y, owners, k, 2), by_client(ones(sk.f1_score), owners, k, y, named)),
        (
            scores.balanced_accuracy(named, y, owners, k, 2),
            by_client(if_both(sk.balanced_accuracy_score), owners, k, y, named),
        ),
    ):
        np.testing.assert_allclose(found, reference, **EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_multi_class_metrics_equal_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    k, classes, n = 5, 4, 200
    owners, y = draw.integers(0, k, n), draw.integers(0, classes, n)
    y[owners == 0] %= 3  # a class that this client has never seen may be named all the same
    y[owners == 1] = 2  # one class only
    p = draw.dirichlet(np.ones(classes), n).round(1)
    p /= p.sum(axis=1, keepdims=True)
    named = p.argmax(axis=1)

    def macro(y: np.ndarray, z: np.ndarray) -> float:
        return float(sk.f1_score(y, z, labels=np.unique(y), average="macro"))

    def against_rest(y: np.ndarray, p: np.ndarray) -> float:
        parts = [sk.roc_auc_score(y == c, p[:, c]) for c in np.unique(y)] if len(np.unique(y)) > 1 else [NAN]
        return float(np.mean(parts))

    np.testing.assert_allclose(scores.f1(named, y, owners, k, classes), by_client(macro, owners, k, y, named), **EXACT)
    recall = by_client(lambda y, z: _balanced(y, z), owners, k, y, named)
    np.testing.assert_allclose(scores.balanced_accuracy(named, y, owners, k, classes), recall, **EXACT)
    found = scores.auroc_one_vs_rest(p, y, owners, k)
    np.testing.assert_allclose(found, by_client(against_rest, owners, k, y, p), **EXACT)
    whole = sk.roc_auc_score(y[owners == 2], p[owners == 2], multi_class="ovr", average="macro")
    assert found[2] == pytest.approx(whole, abs=1e-12)


def _balanced(y: np.ndarray, z: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are named but do not occur
        return float(sk.balanced_accuracy_score(y, z)) if len(set(y.tolist())) > 1 else NAN


def test_regression_metrics_equal_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    k, n = 4, 60
    owners = draw.integers(0, 3, n)  # client 3 has nothing
    z, y = draw.normal(1e3, 2, (n, 2)), draw.normal(1e3, 3, (n, 2))
    z[owners == 1, 0] = 0.1  # constant
    for function, reference in (
        (scores.absolute_errors, sk.mean_absolute_error),
        (scores.root_squared_errors, lambda z, y, **o: np.sqrt(sk.mean_squared_error(z, y, **o))),
        (scores.determination, sk.r2_score),
    ):
        found = function(y, z, owners, k)
        assert found.shape == (k, 2)
        for client in range(3):
            own = owners == client
            expected = reference(z[own], y[own], multioutput="raw_values")
            if function is scores.determination and client == 1:
                expected[0] = NAN
            np.testing.assert_allclose(found[client], expected, rtol=1e-12, equal_nan=True)
        assert np.isnan(found[3]).all()


def test_by_hand() -> None:
    """Client 0: scores 0.1 0.4 0.4 0.8 of classes 0 0 1 1; client 1: class 1 only; client 2: nothing."""
    values = np.array([0.8, 0.1, 0.4, 0.4, 0.3, 0.9])
    y = np.array([1, 0, 1, 0, 1, 1])
    owners, k = np.array([0, 0, 0, 0, 1, 1]), 3
    positive, named = y == 1, (values > 0.5).astype(int)
    # pairs (positive, negative): 0.8 beats both, 0.4 beats 0.1 and ties with 0.4
    np.testing.assert_allclose(scores.auroc(values, positive, owners, k), [3.5 / 4, NAN, NAN], **EXACT)
    # half the recall at precision 1, the other half where two of three are right
    np.testing.assert_allclose(scores.auprc(values, positive, owners, k), [(1 + 2 / 3) / 2, 1, NAN], **EXACT)
    np.testing.assert_allclose(scores.f1(named, y, owners, k, 2), [2 / 3, 2 / 3, NAN], **EXACT)
    np.testing.assert_allclose(scores.balanced_accuracy(named, y, owners, k, 2), [0.75, NAN, NAN], **EXACT)
    squares = (0.04 + 0.01 + 0.36 + 0.16) / 4
    np.testing.assert_allclose(scores.brier(values, positive, owners, k), [squares, 0.25, NAN], **EXACT)
    # bins: 0.8 (one, right), 0.1 (one), 0.4 (two, of which one right)
    error = (0.2 + 0.1 + 2 * 0.1) / 4
    np.testing.assert_allclose(scores.calibration(values, positive, owners, k), [error, 0.4, NAN], **EXACT)


def test_a_thousand_clients_take_a_fraction_of_a_second() -> None:
    draw = np.random.default_rng(0)
    k, each = 1000, 100
    owners, values = np.repeat(np.arange(k), each), draw.random(k * each)
    positive = draw.random(k * each) < values
    named, y = (values > 0.5).astype(np.int64), positive.astype(np.int64)
    begin = process_time()
    scores.auroc(values, positive, owners, k)
    scores.auprc(values, positive, owners, k)
    scores.brier(values, positive, owners, k)
    scores.calibration(values, positive, owners, k)
    scores.f1(named, y, owners, k, 2)
    scores.balanced_accuracy(named, y, owners, k, 2)
    assert process_time() - begin < 1.0
