"""Who learns from whom as coloured matrices, several rounds side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coterie.reports.figures.style import UNKNOWN, grid, name_ticks, new_figure, paper_style

OWN_COLOUR = "#1A1A1A"

FAR = 2.0
"""Own parts up to that many times what is taken from others are on the same scale."""

Panel = tuple[str, pd.DataFrame]
"""A title, and clients by clients: row i says what client i takes, column j from whom."""


@paper_style()
def draw_heatmaps(
    panels: Sequence[Panel], columns: int, width: float, name: str = "weight", *, one_scale: bool = True
) -> Figure:
    """Matrices whose colours span what clients take from others.

    What clients keep of their own may be far more: cells beyond the scale are then black, and it ends in an arrow.
    Unknown cells are light grey.

    Parameters
    ----------
    panels : sequence
        Titles and matrices ``(K, K)``.
    columns : int
        How many panels a row has at most.
    width : float
        In inches.
    name : str
        What the cells hold.
    one_scale : bool
        The same colours in all panels; otherwise each has its own.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    bars = 0.75 if one_scale else 0.7 * columns
    side = min((width - bars) / columns, 2.6)
    height = side + 0.3 + 0.12 * any("\n" in title for title, _ in panels)
    figure = new_figure(min(width, columns * side + bars + 0.2), rows * height + 0.1)
    common = _scale([frame.to_numpy(float) for _, frame in panels])
    axes = grid(figure, len(panels), columns)
    for place, (each, (title, frame)) in enumerate(zip(axes, panels, strict=True)):
        matrix = frame.to_numpy(float)
        low, high, beyond = common if one_scale else _scale([matrix])
        each.imshow(matrix, cmap=_colours(), vmin=low, vmax=high, interpolation="nearest", aspect="equal")
        each.set_title(title)
        _names(each, frame, side - 0.3, first=place % columns == 0, last=place >= len(panels) - columns)
        if not one_scale:
            _bar(figure, [each], beyond, name if place % columns == columns - 1 else "")
    if one_scale:
        _bar(figure, axes, common[2], name)
    return figure


def _colours() -> Colormap:
    return colormaps["Blues"].with_extremes(bad=UNKNOWN, over=OWN_COLOUR)


def _bar(figure: Figure, axes: list[Axes], beyond: bool, name: str) -> None:
    extend = "max" if beyond else "neither"
    bar = figure.colorbar(axes[0].images[0], ax=axes, extend=extend, shrink=0.9, aspect=18, pad=0.02)
    bar.set_label(name)
    bar.outline.set_linewidth(0.4)


def _names(axes: Axes, frame: pd.DataFrame, inches: float, *, first: bool, last: bool) -> None:
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4)
    name_ticks(axes.xaxis, list(map(str, frame.columns)), inches)
    name_ticks(axes.yaxis, list(map(str, frame.index)), inches)
    if last:
        axes.set_xlabel("from client")
    if first:
        axes.set_ylabel("client")


def _scale(matrices: Sequence[NDArray[np.float64]]) -> tuple[float, float, bool]:
    """Least and largest value of the colours, and whether cells lie beyond; from what clients take from others."""
    everything = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    others = [matrix[~np.eye(len(matrix), dtype=bool)] for matrix in matrices]
    taken = np.concatenate([values[np.isfinite(values)] for values in others])
    if not everything.size:
        return 0.0, 1.0, False
    most = float(everything.max())
    high = float(taken.max()) if taken.size else most
    if high <= 1e-3 * most or most <= FAR * high:  # rounding shall not look like a pattern, nor own parts stand apart
        high = most
    low = min(0.0, float(everything.min()))
    return low, high if high > low else low + 1.0, most > high * (1 + 1e-9)
