"""The metrics by which systems are compared, value by value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import Reported, metric_of, worst, worst_decile
from coterie.evaluation.summary import relative_key


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


def measures(metric: str, others: Iterable[str] = ()) -> dict[str, Measure]:
    """What runs that are reported in ``metric`` can be compared by, that one first; ``others`` were measured beside."""
    kind = metric_of(metric)
    up, key = kind.larger_is_better, relative_key(metric)
    sign = 1.0 if up else -1.0

    def relative(own: Reported, alone: pd.Series[float]) -> pd.Series[float]:
        return sign * (own.values - alone) / alone.where(alone != 0)

    def transferred(own: Reported, alone: pd.Series[float]) -> pd.Series[float]:
        better = sign * own.values >= sign * alone
        return better.astype(float).where(own.values.notna() & alone.notna())

    listed = (
        Measure(metric, up, lambda own, alone: own.values),
        *([Measure(key, True, _against(relative))] if key is not None else []),
        Measure("ptr", True, _against(transferred)),
        *([Measure("gain", True, _against(lambda own, alone: 100.0 * (own.values - alone)))] if kind.is_share else []),
        Measure("worst", up, lambda own, alone: _one(worst(own.values, larger_is_better=up)), True),
        Measure("worst_decile", up, lambda own, alone: _one(worst_decile(own.values, larger_is_better=up)), True),
    )
    more = (Measure(name, metric_of(name).larger_is_better, _other(name)) for name in others if name != metric)
    return {measure.name: measure for measure in (*listed, *more)}


def measure_named(name: str | None, metric: str, others: Iterable[str] = ()) -> Measure:
    """What is called so; the metric in which the runs are reported by default.

    Raises
    ------
    CoterieError
        There is no such thing in these runs.
    """
    known = measures(metric, others)
    chosen = name or metric
    if chosen not in known:
        raise CoterieError(f"--metric {chosen}: these runs are compared by {', '.join(known)}.")
    return known[chosen]


def _other(name: str) -> Callable[[Reported, Reported | None], pd.Series[float]]:
    """A metric beside the one in which a run is reported, in the round that the latter chose."""
    return lambda own, alone: own.others.get(name, own.values * float("nan"))


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
