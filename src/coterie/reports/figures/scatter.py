"""Gain against a fact about the clients: who gains, the small, or those like others?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.reports.figures.style import Look, legend_above, new_figure, paper_style


@paper_style()
def draw_scatter(points: pd.DataFrame, looks: Mapping[str, Look], xlabel: str, ylabel: str, width: float) -> Figure:
    """One point a client and system.

    Parameters
    ----------
    points : DataFrame
        Columns label, x, y.
    looks : mapping
        Of each label.
    xlabel, ylabel : str
    width : float
        In inches.
    """
    figure = new_figure(width, min(0.75 * width, 2.8))
    axes = figure.subplots()
    axes.grid()
    axes.axhline(0, color="black", linewidth=0.6)
    handles: dict[str, Any] = {}
    for label, own in points.groupby("label", sort=False):
        look, many = looks[str(label)], len(own) > 200
        (handles[str(label)],) = axes.plot(
            own["x"], own["y"], linestyle="none", marker=look.marker or "o", color=look.colour, label=str(label),
            markersize=1.8 if many else 3.2, markerfacecolor=look.colour if many else "none", markeredgewidth=0.7,
            alpha=0.6 if many else 1.0, rasterized=many,
        )  # fmt: skip
    x = points["x"][np.isfinite(points["x"])]
    if len(x) and x.min() > 0 and x.max() > 20 * x.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend_above(figure, handles)
    return figure
