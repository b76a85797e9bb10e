"""Curves: what clients reach on average, by round or by what has travelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.reports.figures.choice import Over
from coterie.reports.figures.style import Look, legend_above, new_figure, paper_style

UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


@paper_style()
def draw_curves(
    curves: pd.DataFrame, looks: Mapping[str, Look], ylabel: str, width: float, over: Over = "round"
) -> Figure:
    """The mean over clients with a band of one standard deviation over seeds, one line a system.

    Parameters
    ----------
    curves : DataFrame
        As `coterie.reports.series.curves` makes it: columns label, round, mean, std, seeds, bytes.
    looks : mapping
        Of each label.
    ylabel : str
        What the mean is of.
    width : float
        In inches.
    over : {"round", "bytes"}
        The horizontal axis. By bytes, a system that has sent nothing is a level line at its last value.
    """
    figure = new_figure(width, min(0.72 * width, 2.6))
    axes = figure.subplots()
    axes.grid(axis="y")
    unit, scale = ("", 1.0) if over == "round" else _unit(curves["bytes"].max())
    handles: dict[str, Any] = {}
    for place, (label, own) in enumerate(curves.groupby("label", sort=False)):
        look, mean = looks[str(label)], own["mean"].where(np.isfinite(own["mean"]))
        style = {"color": look.colour, "linestyle": look.line, "label": str(label), "zorder": 2 if look.marker else 3}
        if over == "bytes" and not own["bytes"].any():
            handles[str(label)] = axes.axhline(mean.iloc[-1], **style)
            continue
        x = own[over] / scale
        every = max(1, len(own) // 8)
        (handles[str(label)],) = axes.plot(
            x, mean, **style, marker=look.marker or None, markevery=(min(place, every - 1), every),
            markerfacecolor="white", markeredgewidth=0.9,
        )  # fmt: skip
        if (own["seeds"] > 1).any():
            axes.fill_between(x, mean - own["std"], mean + own["std"], color=look.colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round" if over == "round" else f"sent and received by all clients ({unit})")
    axes.set_ylabel(ylabel)
    axes.margins(x=0.02)
    legend_above(figure, handles)
    return figure


def _unit(most: float) -> tuple[str, float]:
    return next(((name, size) for name, size in UNITS if most >= size), UNITS[-1])
