"""From whom single clients learn as training goes on: weights by round, one panel a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.reports.figures.style import (
    COLOURS,
    LINES,
    MARKERS,
    grid,
    legend_above,
    new_figure,
    paper_style,
    short_names,
)

NAMED = 5
"""So many others are told apart by name where there are no groups; the rest is grey."""


@paper_style()
def draw_weights(
    rounds: Mapping[int, pd.DataFrame], clients: Sequence[str], width: float, name: str = "weight",
    groups: Mapping[str, float] | None = None,
) -> Figure:  # fmt: skip
    """What each of ``clients`` takes from everybody, by round.

    Parameters
    ----------
    rounds : mapping
        By round, clients by clients ``(K, K)``.
    clients : sequence of str
        Whose rows; one panel each.
    width : float
        In inches.
    name : str
        What the weights are called.
    groups : mapping, optional
        Of each client its group: others then have the colour of their group.
    """
    columns = min(len(clients), 2 if width < 5 else 4)
    rows = -(-len(clients) // columns)
    figure = new_figure(width, 0.4 + rows * (1.9 if columns == 1 else 1.35))
    handles: dict[str, Any] = {}
    for place, (axes, client) in enumerate(
        zip(grid(figure, len(clients), columns, sharex=True, sharey=True), clients, strict=True)
    ):
        taken = pd.DataFrame({number: frame.loc[client] for number, frame in rounds.items()}).T
        taken.columns = taken.columns.astype(str)
        handles |= _by_group(axes, taken, client, groups) if groups else _by_name(axes, taken, client)
        axes.set_title(client)
        axes.grid(axis="y")
        if place % columns == 0:
            axes.set_ylabel(name)
        if place >= len(clients) - columns:
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
    others = handles.pop("others", None)
    legend_above(figure, handles | ({"others": others} if others is not None else {}))
    return figure


def _by_group(axes: Axes, taken: pd.DataFrame, client: str, groups: Mapping[str, float]) -> dict[str, Any]:
    kinds = sorted(set(groups.values()))
    handles: dict[str, Any] = {}
    for other in taken:
        if other == client or str(other) not in groups:
            continue
        kind = kinds.index(groups[str(other)])
        (handles[f"from group {groups[str(other)]:g}"],) = axes.plot(
            taken.index, taken[other], color=COLOURS[kind % len(COLOURS)], linestyle=LINES[kind % len(LINES)],
            linewidth=0.9,
        )  # fmt: skip
    return dict(sorted(handles.items())) | _own(axes, taken, client)


def _by_name(axes: Axes, taken: pd.DataFrame, client: str) -> dict[str, Any]:
    others = taken.drop(columns=client)
    most = others.max().sort_values(ascending=False).index[:NAMED].tolist()
    handles: dict[str, Any] = {}
    for other in others.columns.difference(most, sort=False):
        (handles["others"],) = axes.plot(taken.index, others[other], color="#BBBBBB", linewidth=0.6)
    short = dict(zip(taken.columns, short_names(list(taken.columns)), strict=True))
    for other in most:
        place = list(taken).index(other)
        colour, line = COLOURS[place % (len(COLOURS) - 1)], LINES[place // 6 % len(LINES)]
        (handles[f"from {short[other]}"],) = axes.plot(
            taken.index, others[other], color=colour, linestyle=line, marker=MARKERS[place % len(MARKERS)],
            markevery=max(1, len(taken) // 6), linewidth=0.9, markersize=2.8,
        )  # fmt: skip
    return handles | _own(axes, taken, client)


def _own(axes: Axes, taken: pd.DataFrame, client: str) -> dict[str, Any]:
    (line,) = axes.plot(taken.index, taken[client], color="black", linewidth=1.4)
    return {"own": line}
