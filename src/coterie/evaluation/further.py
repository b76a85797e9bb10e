"""The metrics beside loss and accuracy, of many clients at once, and why some clients do not have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.evaluation import scores
from coterie.evaluation.tables import Task

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

NO_EXAMPLES = "no {split} data"
ONE_CLASS = "only class {value} in its {split} data"
CONSTANT = "its {split} targets are all the same"
CONSTANT_TARGET = "target {value} is always the same in its {split} data"

NEED_BOTH_CLASSES = ("auroc", "balanced_accuracy")
NEED_POSITIVES = ("auprc", "f1")

Reasons = dict[str, dict[int, str]]
"""By metric, why a client (by number) does not have it."""


def further(
    names: Sequence[str],
    task: Task,
    classes: int,
    predicted: Floats,
    targets: NDArray[np.generic],
    owners: Whole,
    k: int,
    weights: Floats | None = None,
) -> dict[str, Floats]:
    """Metrics by name, ``(k,)`` each; NaN where a client's data do not define one, or a prediction is not finite.

    ``predicted`` are probabilities ``(n, C)`` or values ``(n, t)``, ``targets`` classes ``(n,)`` or values ``(n, t)``;
    ``owners: (n,)`` is the client of each, and ``weights: (n,)`` say how much it counts; examples of weight 0 are as if
    they were not there.
    """
    if weights is not None:
        there = weights > 0
        predicted, targets, owners, weights = predicted[there], targets[there], owners[there], weights[there]
    lost = np.zeros(k, dtype=bool)
    lost[owners[~np.isfinite(predicted).all(axis=1)]] = True
    if task == "regression":
        real = targets.astype(np.float64).reshape(predicted.shape)
        found = {name: _regression(name, predicted, real, owners, k, weights) for name in names}
    else:
        known = targets.astype(np.int64)
        found = {name: _classification(name, classes, predicted, known, owners, k, weights) for name in names}
    return {name: np.where(lost, np.nan, values) for name, values in found.items()}


def _classification(
    name: str, classes: int, predicted: Floats, targets: Whole, owners: Whole, k: int, weights: Floats | None
) -> Floats:
    if name in ("f1", "balanced_accuracy"):
        of = scores.f1 if name == "f1" else scores.balanced_accuracy
        return of(predicted.argmax(axis=1), targets, owners, k, classes, weights)
    if classes != 2:
        return scores.auroc_one_vs_rest(predicted, targets, owners, k, weights)
    of_scores = {
        "auroc": scores.auroc, "auprc": scores.auprc, "brier": scores.brier, "calibration": scores.calibration,
    }[name]  # fmt: skip
    return of_scores(predicted[:, 1], targets == 1, owners, k, weights)


def _regression(name: str, predicted: Floats, targets: Floats, owners: Whole, k: int, weights: Floats | None) -> Floats:
    base, _, target = name.partition(":")
    chosen = slice(None) if not target else slice(int(target), int(target) + 1)
    of = {"mae": scores.absolute_errors, "rmse": scores.root_squared_errors, "r2": scores.determination}[base]
    means: Floats = of(predicted[:, chosen], targets[:, chosen], owners, k, weights).mean(axis=1)
    return means


def reasons(
    names: Sequence[str],
    task: Task,
    classes: int,
    targets: NDArray[np.generic],
    owners: Whole,
    k: int,
    split: str,
    weights: Floats | None = None,
) -> Reasons:
    """Why clients do not have some of the metrics ``names``, whatever is predicted: their data in a split say it.

    A sentence without its full stop, such as "only class 0 in its test data". Examples of weight 0 are not there.
    """
    if weights is not None:
        targets, owners = targets[weights > 0], owners[weights > 0]
    n = np.bincount(owners, minlength=k)
    empty = {int(client): NO_EXAMPLES.format(split=split) for client in np.flatnonzero(n == 0)}
    more = _of_targets if task == "regression" else _of_classes
    found = more(names, classes, targets, owners, k, split)
    return {name: own for name in names if (own := empty | _named(found.get(name, {}), n))}


def _named(found: Mapping[int, str], n: Whole) -> dict[int, str]:
    return {client: reason for client, reason in found.items() if n[client]}


def _of_classes(
    names: Sequence[str], classes: int, targets: NDArray[np.generic], owners: Whole, k: int, split: str
) -> Reasons:
    counts = np.bincount(owners * classes + targets.astype(np.int64), minlength=k * classes).reshape(k, classes)
    single = {
        int(client): ONE_CLASS.format(value=int(counts[client].argmax()), split=split)
        for client in np.flatnonzero((counts > 0).sum(axis=1) == 1)
    }
    found = {name: single for name in names if name in NEED_BOTH_CLASSES}
    if classes == 2:
        without = {client: reason for client, reason in single.items() if not counts[client, 1]}
        found |= {name: without for name in names if name in NEED_POSITIVES}
    return found


def _of_targets(
    names: Sequence[str], classes: int, targets: NDArray[np.generic], owners: Whole, k: int, split: str
) -> Reasons:
    wanted = [name for name in names if name.partition(":")[0] == "r2"]
    if not wanted:
        return {}
    columns = targets.astype(np.float64).reshape(-1, classes).T
    same = np.stack([scores.constant(column, owners, k) for column in columns], axis=1)  # (k, t)
    found: Reasons = {}
    for name in wanted:
        target = name.partition(":")[2]
        chosen = [int(target)] if target else list(range(classes))
        text = CONSTANT if classes == 1 else CONSTANT_TARGET
        found[name] = {
            int(client): text.format(value=next(t for t in chosen if same[client, t]), split=split)
            for client in np.flatnonzero(same[:, chosen].any(axis=1))
        }
    return found
