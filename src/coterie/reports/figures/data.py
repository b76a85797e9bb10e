"""Whose data are they: classes by client as bubbles, as an image for many clients, sizes alone without classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coterie.reports.figures.style import COLOURS, name_ticks, new_figure, paper_style

BUBBLE_INCHES = 0.08
"""Where clients or classes have less room than that each, they are cells of an image."""


@paper_style()
def draw_classes(
    counts: NDArray[np.int64], names: Sequence[str], width: float, labels: Sequence[str] | None = None
) -> Figure:
    """Training examples by client and class; the area of a bubble is their number.

    Parameters
    ----------
    counts : ndarray ``(K, C)``
    names : sequence of str
        Of the clients.
    width : float
        In inches.
    labels : sequence of str, optional
        Names of the classes; default 0, 1, ...
    """
    k, classes = counts.shape
    room = (width - 0.6) / k, min(2.4, max(0.9, classes * 0.16)) / classes
    figure = new_figure(width, room[1] * classes + 0.75)
    axes = figure.subplots()
    if min(room) >= BUBBLE_INCHES:
        _bubbles(axes, counts, min(*room, 0.3))
    else:
        image = axes.imshow(counts.T, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest", origin="lower")
        bar = figure.colorbar(image, ax=axes, aspect=18, pad=0.02)
        bar.set_label("training examples")
        bar.outline.set_linewidth(0.4)
    name_ticks(axes.xaxis, names, width - (1.1 if axes.images else 0.6))
    name_ticks(axes.yaxis, labels or [str(number) for number in range(classes)], room[1] * classes)
    axes.set(xlabel="client", ylabel="class")
    return figure


def _bubbles(axes: Axes, counts: NDArray[np.int64], inches: float) -> None:
    client, number = np.nonzero(counts)
    found = counts[client, number]
    most = max(int(counts.max(initial=0)), 1)
    largest = (72 * inches * 0.92) ** 2
    axes.grid(linewidth=0.3)
    axes.scatter(client, number, s=found / most * largest, color=COLOURS[0], linewidths=0)
    axes.set(xlim=(-0.6, counts.shape[0] - 0.4), ylim=(-0.6, counts.shape[1] - 0.4))
    key = [value for value in dict.fromkeys((most, round(most / 4))) if value > 0]
    handles = [
        axes.scatter([], [], s=value / most * largest, color=COLOURS[0], linewidths=0, label=f"{value:,}")
        for value in key
    ]
    axes.figure.legend(
        handles=handles, loc="outside upper right", ncols=3, title="training examples", title_fontsize=6.5,
        borderpad=0.2, alignment="right",
    )  # fmt: skip


@paper_style()
def draw_sizes(n: NDArray[np.int64], names: Sequence[str], width: float) -> Figure:
    """Training examples of each client, ``(K,)``, as they come."""
    figure = new_figure(width, 0.6 * width if width < 4 else 2.2)
    axes = figure.subplots()
    axes.grid(axis="y")
    axes.stairs(n, np.arange(len(n) + 1) - 0.5, fill=True, color=COLOURS[0])
    name_ticks(axes.xaxis, names, width - 0.6)
    axes.set(xlabel="client", ylabel="training examples", xlim=(-0.7, len(n) - 0.3))
    return figure
