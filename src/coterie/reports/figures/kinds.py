"""The kinds of figures: what each takes from the runs, and the sentence where it is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.errors import CoterieError
from coterie.reports.comparing import compare, ranks_over
from coterie.reports.figures.accuracy import draw_accuracy
from coterie.reports.figures.choice import Choice
from coterie.reports.figures.curves import draw_curves
from coterie.reports.figures.data import draw_classes, draw_sizes
from coterie.reports.figures.facts import FACTS, described, fact, places
from coterie.reports.figures.gain import draw_gain
from coterie.reports.figures.gathered import check_choice, check_runs, gathered, without
from coterie.reports.figures.ranks import draw_ranks
from coterie.reports.figures.related import related
from coterie.reports.figures.scatter import draw_scatter
from coterie.reports.figures.style import Look
from coterie.reports.opened import OpenedRun
from coterie.reports.series import curves, gains
from coterie.reports.words import gain_over

METRICS = {
    "mae": "mean absolute error",
    "mse": "mean squared error",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "brier": "Brier score",
    "calibration": "calibration error",
    "rmse": "root mean squared error",
    "r2": "R²",
}
"""Metrics that have another name for readers."""


def draw(kind: str, runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    """Draw a figure of one run, or of several side by side.

    Parameters
    ----------
    kind : str
        A key of `KINDS`.
    runs : sequence of OpenedRun
        At least one.
    choice : Choice
        What to show of them.

    Raises
    ------
    CoterieError
        A run is given twice, or the runs lack what this kind shows, or have no such system, seed, round or client.
    """
    check_runs(runs)
    check_choice(runs, choice)
    return KINDS[kind](runs, choice)


def _curves(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    metric = choice.metric or _metric(runs)
    rows, looks = gathered(runs, choice, partial(curves, split=choice.split, metric=metric))
    if rows.empty:
        raise without(runs, f"no {choice.split} {metric} by round", _measured(runs))
    return draw_curves(rows, looks, _named(choice.split, metric), choice.width, choice.over)


def _gain(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    by_value = choice.order in (None, "value")
    rows, _ = _gains(runs, choice)
    rows = rows if by_value else _in_order(rows, "gain", runs, choice.order, choice.seed)
    ylabel = gain_over(runs[0].metric, "LOCAL")
    return draw_gain(rows, ylabel, choice.width, points=runs[0].in_points, by_value=by_value)


def _accuracy(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    rows, looks = gathered(runs, choice, gains)
    if rows.empty:
        raise without(runs, "no results of single clients")
    rows, ylabel = _in_order(rows, "value", runs, choice.order, choice.seed), _named("test", _metric(runs))
    return draw_accuracy(rows, looks, ylabel, choice.width, larger_is_better=runs[0].larger_is_better)


def _scatter(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    """Facts are of the first seed's data; so are the gains where each seed divides anew."""
    run = _only(runs, "--kind scatter")
    facts = fact(run, choice.against, "--against")
    if len(facts) > 1 and len(set(facts.values())) == 1:
        raise CoterieError(
            f"--against {choice.against}: all clients of {run.directory.path} are alike in it; choose another fact."
        )
    if not run.divided_once:
        choice = replace(choice, seed=described(run, choice.seed))
    rows, looks = _gains(runs, choice)
    points = pd.DataFrame({"label": rows["label"], "x": rows["client"].map(facts), "y": rows["gain"]})
    xlabel, ylabel = FACTS.get(choice.against, choice.against), gain_over(run.metric, "LOCAL")
    return draw_scatter(points, looks, xlabel, ylabel, choice.width)


def _data(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    run = _only(runs, "--kind data")
    if run.portrait is None:
        raise without(runs, "no federation.json, which says whose data they are")
    described(run, choice.seed)
    names, counts = list(map(str, run.portrait["names"])), run.portrait.get("class_counts")
    n = np.asarray(run.portrait["n"]["train"])
    wanted = choice.order or ("value" if counts is None else "client")
    order = places(names, dict(zip(names, n, strict=True)), run, wanted)
    ordered = [names[place] for place in order]
    if counts is None:
        return draw_sizes(n[order], ordered, choice.width)
    return draw_classes(np.asarray(counts)[order], ordered, choice.width, run.portrait.get("labels"))


def _ranks(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    if choice.systems:
        raise CoterieError("--kind ranks is of all systems, since a rank is one among the others: leave --system out.")
    compared = compare([run.directory.path for run in runs], metric=choice.metric)
    values = compared.values
    if choice.seed is not None:
        values = values[values.index.get_level_values("seed") == choice.seed]
    found = ranks_over(values, compared.measure)
    if found is None:
        raise without(runs, "no average ranks", "they take three systems with results of two clients or seeds")
    return draw_ranks(found.average, found.critical_difference, found.cliques, choice.width)


KINDS: dict[str, Callable[[Sequence[OpenedRun], Choice], Figure]] = {
    "curves": _curves,
    "gain": _gain,
    "accuracy": _accuracy,
    "scatter": _scatter,
    "relations": related,
    "data": _data,
    "ranks": _ranks,
}


def _gains(runs: Sequence[OpenedRun], choice: Choice) -> tuple[pd.DataFrame, dict[str, Look]]:
    _metric(runs)
    rows, looks = gathered(runs, choice, gains, alone=False)
    known = rows.groupby("label")["gain"].transform("count") > 0
    if not known.any():
        raise without(
            runs, "no gains over LOCAL", "they take results of local and of another method with the same seed"
        )
    return rows[known], looks


def _named(split: str, metric: str) -> str:
    return f"{split} {METRICS.get(metric, metric)}"


def _metric(runs: Sequence[OpenedRun]) -> str:
    metrics = {run.metric for run in runs}
    if len(metrics) > 1:
        raise CoterieError(f"The runs are reported in {' and '.join(sorted(metrics))}, which one figure cannot show.")
    return metrics.pop()


def _measured(runs: Sequence[OpenedRun]) -> str:
    """What curves there are instead."""
    rows = pd.concat([run.tables.history for run in runs])
    rows = rows[(rows["phase"] == "evaluate") & ~rows["metric"].astype(str).str.startswith("bytes")]
    found = sorted({f"{split} {metric}" for split, metric in zip(rows["split"], rows["metric"], strict=True)})
    return f"there are {', '.join(found)}" if found else ""


def _only(runs: Sequence[OpenedRun], option: str) -> OpenedRun:
    if len(runs) > 1:
        raise CoterieError(f"{option} is for one run; {len(runs)} were given.")
    return runs[0]


def _in_order(
    rows: pd.DataFrame, column: str, runs: Sequence[OpenedRun], order: str | None, seed: int | None
) -> pd.DataFrame:
    """The rows with the clients in the order that is asked for; by value, that of the mean over systems."""
    if order in (None, "client"):
        return rows
    names, run = list(dict.fromkeys(rows["client"])), runs[0] if order == "value" else _only(runs, f"--order {order}")
    if order != "value":
        described(run, seed)
    means = {str(name): float(mean) for name, mean in rows.groupby("client")[column].mean().items()}
    chosen = places(names, means, run, order)
    rank = {names[place]: number for number, place in enumerate(chosen)}
    return rows.iloc[rows["client"].map(rank).argsort(kind="stable")]
