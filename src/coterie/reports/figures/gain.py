"""Gains: what each client has from taking part, as bars; those that lose are hatched."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coterie.reports.figures.style import COLOURS, HARMED, grid, name_ticks, new_figure, paper_style

BAR_INCHES = 0.035
"""Bars narrower than that become one area."""


@paper_style()
def draw_gain(gains: pd.DataFrame, ylabel: str, width: float, *, points: bool = True, by_value: bool = True) -> Figure:
    """The gain of each client over training alone, one panel a system.

    Parameters
    ----------
    gains : DataFrame
        As `coterie.reports.series.gains` makes it, without LOCAL itself; clients without a gain are left out.
    ylabel : str
        What the gains are.
    width : float
        In inches.
    points : bool
        Whether gains are percentage points, of which one decimal is enough.
    by_value : bool
        Order clients by gain, largest first; otherwise as they come.
    """
    labels = list(dict.fromkeys(gains["label"]))
    columns = min(len(labels), max(1, round(width / 1.7)))
    rows = -(-len(labels) // columns)
    figure = new_figure(width, 0.35 + rows * (1.75 if columns == 1 else 1.5))
    for place, (axes, label) in enumerate(zip(grid(figure, len(labels), columns, sharey=True), labels, strict=True)):
        own = gains[(gains["label"] == label) & gains["gain"].notna()]
        own = own.sort_values("gain", ascending=False, kind="stable") if by_value else own
        _panel(axes, own, width / columns - 0.45, str(label), "+.1f" if points else "+.2g")
        if place % columns == 0:
            axes.set_ylabel(ylabel)
    return figure


def _panel(axes: Axes, own: pd.DataFrame, inches: float, label: str, form: str) -> None:
    gain = own["gain"].to_numpy(float)
    harmed = gain < 0
    axes.grid(axis="y")
    axes.axhline(0, color="black", linewidth=0.6)
    if len(gain) * BAR_INCHES <= inches:
        _bars(axes, gain, own["gain_std"].to_numpy(float), harmed)
        name_ticks(axes.xaxis, own["client"].tolist(), inches)
        axes.set_xlabel("client")
    else:
        _areas(axes, gain)
        axes.set_xlabel(f"{len(gain)} clients")
    axes.set_xlim(-0.7, max(len(gain), 1) - 0.3)
    mean = f"{gain.mean():{form}}".replace("-", "−")
    axes.set_title(label, pad=11)
    over_seeds = " on average" if (own["seeds"] > 1).any() else ""
    axes.annotate(
        f"mean {mean}, {harmed.sum()}/{len(gain)} harmed{over_seeds}", (0.5, 1), (0, 3), xycoords="axes fraction",
        textcoords="offset points", ha="center", fontsize=6,
    )  # fmt: skip


def _bars(axes: Axes, gain: NDArray[np.float64], std: NDArray[np.float64], harmed: NDArray[np.bool_]) -> None:
    places = np.arange(len(gain))
    for chosen, style in (
        (~harmed, {"color": COLOURS[0], "label": "gains"}),
        (harmed, {"facecolor": HARMED, "edgecolor": "white", "hatch": "//////", "linewidth": 0, "label": "harmed"}),
    ):
        axes.bar(places[chosen], gain[chosen], width=0.8, **style)
    if (std > 0).any():
        axes.errorbar(places, gain, std, fmt="none", ecolor="#444444", elinewidth=0.5)


def _areas(axes: Axes, gain: NDArray[np.float64]) -> None:
    edges = np.arange(len(gain) + 1) - 0.5
    axes.stairs(np.maximum(gain, 0), edges, fill=True, color=COLOURS[0], label="gains")
    axes.stairs(
        np.minimum(gain, 0), edges, fill=True, facecolor=HARMED, edgecolor="white", hatch="//////", linewidth=0,
        label="harmed",
    )  # fmt: skip
