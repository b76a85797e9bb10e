"""The metrics of evaluation: what each is called, which direction is better, and for which tasks there is it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.errors import CoterieError
from coterie.evaluation.tables import MAIN_METRIC, Task

Kind = Literal["binary", "multi-class", "regression"]
CLASSIFICATION: tuple[Kind, ...] = ("binary", "multi-class")
ALL: tuple[Kind, ...] = (*CLASSIFICATION, "regression")

OBJECTIVES = ("loss", "mse")
"""What training lowers; measured always, but systems are not summarised by it."""

ROUNDING = 1e-6
"""By so much a mean in floating-point numbers may be beyond what it is a mean of."""


@dataclass(frozen=True)
class Metric:
    """One metric of a client's predictions.

    Attributes
    ----------
    name : str
        As in configurations and tables.
    title : str
        For readers.
    larger_is_better : bool
    is_share : bool
        Whether it lies between 0 and 1 and larger is better, so that differences are percentage points.
    kinds : tuple
        The tasks that have it.
    always, automatic : tuple
        The tasks where it is measured whatever is asked for, and under ``metrics: auto``.
    by_target : bool
        Whether there is one for each target, such as ``mae:0``.
    """

    name: str
    title: str
    larger_is_better: bool
    is_share: bool
    kinds: tuple[Kind, ...]
    always: tuple[Kind, ...] = ()
    automatic: tuple[Kind, ...] = ()
    by_target: bool = False

    @property
    def is_error(self) -> bool:
        """Whether it is 0 at best, so that a part of it can be saved."""
        return not self.larger_is_better

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value that it can have."""
        lowest = 0.0 if self.is_share or self.is_error else -math.inf
        return lowest, 1.0 if self.larger_is_better else math.inf

    @property
    def limits(self) -> str:
        """Its bounds in words: from 0 to 1."""
        return "from 0 to 1" if self.is_share else "of at most 1" if self.larger_is_better else "of at least 0"

    def can_be(self, value: float) -> bool:
        """Whether it can have this value, but for rounding; NaN stands for none."""
        lowest, highest = self.bounds
        return not (value < lowest - ROUNDING or value > highest + ROUNDING)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("loss", "Loss", False, False, CLASSIFICATION, always=CLASSIFICATION),
        Metric("accuracy", "Accuracy", True, True, CLASSIFICATION, always=CLASSIFICATION),
        Metric("auroc", "AUROC", True, True, CLASSIFICATION, automatic=("binary",)),
        Metric("auprc", "AUPRC", True, True, ("binary",), automatic=("binary",)),
        Metric("f1", "F1", True, True, CLASSIFICATION, automatic=("binary",)),
        Metric("balanced_accuracy", "Balanced accuracy", True, True, CLASSIFICATION, automatic=("binary",)),
        Metric("brier", "Brier score", False, False, ("binary",), automatic=("binary",)),
        Metric("calibration", "Calibration error", False, False, ("binary",), automatic=("binary",)),
        Metric("mse", "MSE", False, False, ("regression",), always=("regression",)),
        Metric("mae", "MAE", False, False, ("regression",), always=("regression",), by_target=True),
        Metric("rmse", "RMSE", False, False, ("regression",), automatic=("regression",), by_target=True),
        Metric("r2", "R²", True, False, ("regression",), automatic=("regression",), by_target=True),
    )
}


def metric_of(name: str) -> Metric:
    """The metric of a name such as ``auroc`` or, for one target, ``mae:0``.

    Raises
    ------
    CoterieError
        There is none.
    """
    base, colon, target = name.partition(":")
    found = METRICS.get(base)
    if found is None or (colon and not (found.by_target and target)):
        near = difflib.get_close_matches(base, METRICS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(METRICS)}."
        one = f"{base} has no values for single targets." if found is not None else hint
        raise CoterieError(f"There is no metric {name}: {one}")
    return found


def title_of(name: str) -> str:
    """A metric's name for readers, ``MAE (0)`` for one target; the name itself where it is none of the table."""
    base, _, target = name.partition(":")
    if base not in METRICS:
        return name
    return f"{METRICS[base].title} ({target})" if target else METRICS[base].title


def gain_scale(name: str) -> float:
    """The factor that makes a gain of a difference: 100 for shares, whose gains are points, -1 for errors, else 1."""
    metric = metric_of(name)
    return 100.0 if metric.is_share else 1.0 if metric.larger_is_better else -1.0


def may_be_undefined(name: str) -> bool:
    """Whether some data define no value of it, whatever is predicted."""
    return name.partition(":")[0] in ("auroc", "auprc", "f1", "balanced_accuracy", "r2")


def kind_of(task: Task, classes: int) -> Kind:
    """The kind of task that decides which metrics there are."""
    return "regression" if task == "regression" else "binary" if classes == 2 else "multi-class"


def main_metric(task: Task, metric: str | None) -> str:
    """The metric in which a run is reported: the one that was chosen, else the task's own."""
    return metric or MAIN_METRIC[task]


def all_metrics(task: Task, classes: int, further: Sequence[str]) -> tuple[str, ...]:
    """What is measured of the task whatever is asked for, and then what `further_metrics` are."""
    kind = kind_of(task, classes)
    return (*(metric.name for metric in METRICS.values() if kind in metric.always), *further)


def further_metrics(
    asked: Sequence[str] | Literal["auto"], metric: str | None, task: Task, classes: int
) -> tuple[str, ...]:
    """What is measured beside loss and accuracy, or mean squared and absolute error.

    Parameters
    ----------
    asked : sequence of str or ``auto``
        The configuration's ``metrics``.
    metric : str, optional
        The one in which the run is reported; it is measured whether it was asked for or not.
    task, classes
        Of the federation; ``classes`` is the number of targets of a regression.

    Raises
    ------
    CoterieError
        There is no such metric for this task.
    """
    kind = kind_of(task, classes)
    wanted = [m.name for m in METRICS.values() if kind in m.automatic] if asked == "auto" else list(asked)
    found: dict[str, None] = {}
    for name in [*wanted, *([metric] if metric else [])]:
        known = metric_of(name)
        if kind not in known.kinds:
            there = ", ".join(each.name for each in METRICS.values() if kind in each.kinds)
            raise CoterieError(f"There is no {name} for a {_called(kind)}: choose among {there}.")
        if ":" in name:
            found[known.name + ":" + str(_target(name, classes))] = None
        elif kind not in known.always:
            found[name] = None
    return tuple(found)


def _called(kind: Kind) -> str:
    return kind if kind == "regression" else f"{kind} classification"


def _target(name: str, targets: int) -> int:
    """The number of the target in a name such as ``mae:0``."""
    text = name.partition(":")[2]
    if not text.isdecimal() or int(text) >= targets:
        raise CoterieError(f"{name} names no target: the regression has the targets 0 to {targets - 1}.")
    return int(text)
