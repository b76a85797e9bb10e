"""The summary of newcomers: one row a system and a way of joining, over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from coterie.evaluation.catalogue import gain_scale, main_metric
from coterie.evaluation.tables import MAIN_METRIC, Task

System = tuple[str, str]


def summarise_newcomers(
    table: pd.DataFrame,
    *,
    task: Task,
    reference: System = ("local", ""),
    labels: Mapping[System, str] | None = None,
    metric: str | None = None,
) -> list[dict[str, Any]]:
    """Rows of a summary from the newcomers' table.

    Means are over the newcomers, then over the seeds, with the standard deviation over seeds (``ddof=1``, 0 for one
    seed). A newcomer that failed is left out of all of them and counted. The gain compares each newcomer with itself
    after as many epochs from theta^0, which is what LOCAL means here; newcomers without labels have none.

    Parameters
    ----------
    table : DataFrame
        Columns ``NEWCOMERS``.
    task : str
        ``classification`` reports the accuracy, ``regression`` the mean absolute error.
    reference : (algorithm, variant)
        LOCAL.
    labels : mapping, optional
        Names to print, by system.
    metric : str, optional
        In which they are reported, in place of the task's own; newcomers whose data do not define it are left out and
        counted as ``undefined``.

    Returns
    -------
    list of dict
        ``curve`` holds the mean after each epoch, from 0 (on arrival); undefined numbers are None.
    """
    metric = main_metric(task, metric)
    values = table[table["metric"] == metric]
    alone = _pivots(values[_of(values, reference) & values["labelled"]])
    rows = []
    for algorithm, variant, labelled in dict.fromkeys(
        zip(values["algorithm"], values["variant"], values["labelled"], strict=True)
    ):
        mine = _of(table, (algorithm, variant)) & (table["labelled"] == labelled)
        curves = _pivots(values[_of(values, (algorithm, variant)) & (values["labelled"] == labelled)])
        last = {seed: curve.iloc[-1] for seed, curve in curves.items()}
        failed = _without(table[mine & (table["metric"] == MAIN_METRIC[task])])
        whole = [curve.loc[:, last[seed].notna()].to_numpy() for seed, curve in curves.items()]
        epochs = max(len(curve) for curve in curves.values()) - 1
        means = np.array([curve.mean(axis=1) for curve in whole if curve.size]).reshape(-1, epochs + 1)
        average, spread = list[float | None](), list[float | None]()
        for column in means.T:  # one epoch, by seed
            average.append(float(column.mean()) if len(column) else None)
            spread.append(float(column.std(ddof=1)) if len(column) > 1 else 0.0 if len(column) else None)
        rows.append(
            {
                "algorithm": algorithm,
                "variant": variant or None,
                "label": (labels or {}).get((algorithm, variant)) or algorithm,
                "reference": (algorithm, variant) == reference,
                "labelled": bool(labelled),
                "seeds": list(curves),
                "newcomers": max(curve.shape[1] for curve in curves.values()),
                "failed": failed,
                "undefined": _without(table[mine & (table["metric"] == metric)]) - failed,
                "metric": metric,
                "epochs": epochs,
                "curve": average,
                "curve_std": spread,
                **_gains(last, {seed: curve.iloc[-1] for seed, curve in alone.items()} if labelled else {}, metric),
                "bytes_received": _per_newcomer(table[mine], ("bytes_down", "bytes_peer")),
                "bytes_sent": _per_newcomer(table[mine], ("bytes_up",)),
            }
        )
    return rows


def _of(table: pd.DataFrame, system: System) -> pd.Series[bool]:
    return (table["algorithm"] == system[0]) & (table["variant"] == system[1])


def _pivots(values: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """By seed, epochs as rows and newcomers as columns."""
    return {
        seed: values[values["seed"] == seed].pivot_table(index="epoch", columns="client", values="value", dropna=False)
        for seed in map(int, values["seed"].unique())
    }


def _without(values: pd.DataFrame) -> int:
    """How many newcomers, over the seeds, have no value at the last epoch."""
    return sum(int(curve.iloc[-1].isna().sum()) for curve in _pivots(values).values())


def _gains(last: Mapping[int, pd.Series[float]], alone: Mapping[int, pd.Series[float]], metric: str) -> dict[str, Any]:
    """Gain over training alone at the last epoch (percentage points, or error saved), and the share that gains."""
    sign = gain_scale(metric)
    gains = [sign * (last[seed] - alone[seed]).dropna() for seed in last if seed in alone]
    known = [gain for gain in gains if len(gain)]
    if not known:
        return {"gain_mean": None, "gain_std": None, "ptr": None}
    return {
        "gain_mean": _mean(float(gain.mean()) for gain in known),
        "gain_std": _mean(float(gain.std(ddof=0)) for gain in known),
        "ptr": _mean(float((gain >= 0).mean()) for gain in known),
    }


def _per_newcomer(table: pd.DataFrame, prefixes: tuple[str, ...]) -> float:
    """Bytes a newcomer, over the seeds."""
    booked = table[table["metric"].str.startswith(prefixes)]
    pairs = table[["seed", "client"]].drop_duplicates()
    return float(booked["value"].sum()) / max(len(pairs), 1)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
