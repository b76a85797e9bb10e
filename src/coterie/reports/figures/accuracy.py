"""What each client reaches with each system: bars for a few clients, lines for some, sorted curves for many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.reports.figures.style import Look, legend_above, name_ticks, new_figure, paper_style

BAR_INCHES = 0.05
"""Narrower bars become lines."""

LINES_UP_TO = 100
"""Clients; of more, each system's values are sorted."""


@paper_style()
def draw_accuracy(
    values: pd.DataFrame, looks: Mapping[str, Look], ylabel: str, width: float, *, larger_is_better: bool = True
) -> Figure:
    """The reported value of each client, systems side by side.

    Parameters
    ----------
    values : DataFrame
        Columns label, client, value; `coterie.reports.series.gains` makes it.
    looks : mapping
        Of each label.
    ylabel : str
        What the values are.
    width : float
        In inches.
    larger_is_better : bool
        False for errors, of which the largest is the worst.
    """
    figure = new_figure(width, 0.45 + min(0.55 * width, 2.0))
    axes = figure.subplots()
    axes.grid(axis="y")
    axes.set_ylabel(ylabel)
    table = values.pivot(index="client", columns="label", values="value")
    table = table.loc[list(dict.fromkeys(values["client"])), list(dict.fromkeys(values["label"]))]
    inches = width - 0.6
    if table.size * BAR_INCHES <= inches:
        handles = _bars(axes, table, looks)
    elif len(table) <= LINES_UP_TO:
        handles = _lines(axes, table, looks)
    else:
        handles = _sorted(axes, table, looks, larger_is_better)
    if len(table) <= LINES_UP_TO:
        name_ticks(axes.xaxis, table.index.tolist(), inches)
        axes.set_xlabel("client")
    axes.margins(x=0.02)
    legend_above(figure, handles)
    return figure


def _bars(axes: Axes, table: pd.DataFrame, looks: Mapping[str, Look]) -> dict[str, Any]:
    """Groups of bars, from a floor below the smallest value, so that differences show."""
    share = 0.84 / table.shape[1]
    handles = {}
    for place, label in enumerate(table):
        look = looks[str(label)]
        handles[str(label)] = axes.bar(
            np.arange(len(table)) + (place - (table.shape[1] - 1) / 2) * share, table[label], width=share,
            facecolor=look.colour, edgecolor="white", linewidth=0.3, hatch=look.hatch, label=str(label),
        )  # fmt: skip
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    if 0 < low < high:
        axes.set_ylim(max(0.0, low - 0.35 * (high - low)))
    return handles


def _lines(axes: Axes, table: pd.DataFrame, looks: Mapping[str, Look]) -> dict[str, Any]:
    handles = {}
    for label in table:
        look = looks[str(label)]
        (handles[str(label)],) = axes.plot(
            np.arange(len(table)), table[label], color=look.colour, linestyle=look.line, marker=look.marker or None,
            markersize=2.8, linewidth=0.9, label=str(label),
        )  # fmt: skip
    return handles


def _sorted(axes: Axes, table: pd.DataFrame, looks: Mapping[str, Look], larger_is_better: bool) -> dict[str, Any]:
    handles = {}
    for label in table:
        look, values = looks[str(label)], table[label].dropna().sort_values(ascending=larger_is_better).to_numpy()
        (handles[str(label)],) = axes.plot(
            np.arange(1, len(values) + 1), values, color=look.colour, linestyle=look.line, label=str(label)
        )
    axes.set_xlabel(f"{len(table)} clients, each system's from worst to best")
    return handles
