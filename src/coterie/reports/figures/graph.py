"""Who learns from whom as a graph: an arrow leads from whoever gives to whoever takes, the wider the more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.reports.figures.facts import similar_places
from coterie.reports.figures.heatmap import Panel
from coterie.reports.figures.style import COLOURS, grid, new_figure, paper_style, short_names

MOST_CLIENTS = 100
ARROWS_A_CLIENT = 3
FAINTEST = 0.1
"""Of the widest arrow: what is fainter is not drawn."""


@paper_style()
def draw_graphs(
    panels: Sequence[Panel], columns: int, width: float, groups: Mapping[str, float] | None = None
) -> Figure:
    """Directed graphs of what clients take from others: the strongest ``3 K``; the last panel says where clients lie.

    Parameters
    ----------
    panels : sequence
        Titles and matrices ``(K, K)`` with the same clients.
    columns : int
        How many panels a row has at most.
    width : float
        In inches.
    groups : mapping, optional
        Of each client the group that gives it its colour.

    Raises
    ------
    CoterieError
        More clients than can be told apart.
    """
    names = list(map(str, panels[-1][1].index))
    if len(names) > MOST_CLIENTS:
        raise CoterieError(
            f"A graph of {len(names)} clients cannot be read (at most {MOST_CLIENTS}): leave out --as graph."
        )
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    side = min(width / columns, 3.3)
    figure = new_figure(min(width, columns * side), rows * (side + 0.15))
    places = _places(_taken(panels[-1][1]))
    colours = _colours(names, groups)
    for axes, (title, frame) in zip(grid(figure, len(panels), columns), panels, strict=True):
        axes.set_title(title)
        _draw(axes, _taken(frame), places, names, colours, side)
    return figure


def _taken(frame: pd.DataFrame) -> NDArray[np.float64]:
    """What clients take from others, ``(K, K)``: unknown, negative and own parts are 0."""
    matrix: NDArray[np.float64] = np.nan_to_num(frame.to_numpy(float), nan=0.0).clip(min=0.0)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _places(taken: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where clients lie on a circle in the unit square, ``(K, 2)``: those that share much are neighbours."""
    count = len(taken)
    angles = np.empty(count)
    angles[similar_places(pd.DataFrame(taken + taken.T))] = 2 * np.pi * np.arange(count) / max(1, count)
    return np.asarray(0.5 + 0.5 * np.stack([np.sin(angles), np.cos(angles)], axis=1))


def _colours(names: Sequence[str], groups: Mapping[str, float] | None) -> list[str]:
    if groups is None:
        return [COLOURS[5]] * len(names)
    kinds = sorted({groups[name] for name in names if name in groups})
    return [COLOURS[kinds.index(groups[name]) % (len(COLOURS) - 1)] if name in groups else "#CCCCCC" for name in names]


def _draw(
    axes: Axes, taken: NDArray[np.float64], places: NDArray[np.float64], names: Sequence[str], colours: list[str],
    side: float,
) -> None:  # fmt: skip
    short = short_names(names)
    inside = max(map(len, short)) <= 3
    points = float(np.clip(72 * side * 0.32 / np.sqrt(max(len(names), 1)), 4, 14)) if inside else 6.0
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.12, 1.12), aspect="equal")
    axes.axis("off")
    most = taken.max(initial=0.0)
    strongest = np.argsort(taken, axis=None)[::-1][: ARROWS_A_CLIENT * len(names)]
    for flat in strongest[::-1]:
        to, source = divmod(int(flat), len(names))
        share = taken[to, source] / most if most > 0 else 0.0
        if share < FAINTEST:
            continue
        axes.add_patch(
            FancyArrowPatch(
                tuple(places[source]), tuple(places[to]), arrowstyle="-|>", mutation_scale=4 + 2 * share,
                connectionstyle="arc3,rad=0.12", shrinkA=points / 2, shrinkB=points / 2, linewidth=0.3 + 1.5 * share,
                color=str(0.75 - 0.6 * share), zorder=1,
            )
        )  # fmt: skip
    axes.scatter(places[:, 0], places[:, 1], s=points**2, c=colours, edgecolors="black", linewidths=0.5, zorder=2)
    if inside and points < 7:
        return
    for (x, y), name in zip(places, short, strict=True):
        if inside:
            axes.text(x, y, name, ha="center", va="center_baseline", fontsize=min(6.0, points * 0.6), zorder=3)
        else:
            axes.annotate(name, (x, y), (0, points * 0.7), textcoords="offset points", ha="center", fontsize=5.5)
