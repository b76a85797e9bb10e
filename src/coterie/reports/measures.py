"""The metrics by which systems are compared, value by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import Reported, worst, worst_decile
from coterie.evaluation.tables import LARGER_IS_BETTER, MAIN_METRIC, Task


@dataclass(frozen=True)
class Measure:
    """One metric of a result, as values by client, or as one value of all clients (named ``all``).

    ``of`` takes a result and that of training alone with the same seed, if there is one; what is undefined is NaN.
    """

    name: str
    larger_is_better: bool
    of: Callable[[Reported, Reported | None], pd.Series[float]]
    of_all_clients: bool = False

    @property
    def unit(self) -> str:
        """What a pair is."""
        return "seed" if self.of_all_clients else "client and seed"


def measures(task: Task) -> dict[str, Measure]:
    """The metrics of a task by name, the main one first."""
    main = MAIN_METRIC[task]
    up = LARGER_IS_BETTER[main]
    sign, scale = (1.0, 100.0) if up else (-1.0, 1.0)

    def relative(own: Reported, alone: pd.Series[float]) -> pd.Series[float]:
        return sign * (own.values - alone) / alone.where(alone != 0)

    def transferred(own: Reported, alone: pd.Series[float]) -> pd.Series[float]:
        better = sign * own.values >= sign * alone
        return better.astype(float).where(own.values.notna() & alone.notna())

    listed = (
        Measure(main, up, lambda own, alone: own.values),
        Measure("r_acc" if up else "r_mae", True, _against(relative)),
        Measure("ptr", True, _against(transferred)),
        Measure("gain", True, _against(lambda own, alone: scale * sign * (own.values - alone))),
        Measure("worst", up, lambda own, alone: _one(worst(own.values, larger_is_better=up)), True),
        Measure("worst_decile", up, lambda own, alone: _one(worst_decile(own.values, larger_is_better=up)), True),
    )
    return {measure.name: measure for measure in listed if up or measure.name != "gain"}


def measure_named(name: str | None, task: Task) -> Measure:
    """The metric of this name; the main one by default.

    Raises
    ------
    CoterieError
        The task has no such metric.
    """
    known = measures(task)
    chosen = name or MAIN_METRIC[task]
    if chosen not in known:
        raise CoterieError(f"--metric {chosen}: a {task} is compared by {', '.join(known)}.")
    return known[chosen]


def _against(
    compare: Callable[[Reported, pd.Series[float]], pd.Series[float]],
) -> Callable[[Reported, Reported | None], pd.Series[float]]:
    """A comparison, client by client, with training alone; NaN where that is not known."""

    def values(own: Reported, alone: Reported | None) -> pd.Series[float]:
        if alone is None:
            return pd.Series(float("nan"), index=own.values.index)
        return compare(own, alone.values.reindex(own.values.index))

    return values


def _one(value: float) -> pd.Series[float]:
    return pd.Series([value], index=["all"])
