"""A critical-difference diagram: mean ranks of systems, bars joining those that do not differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.reports.figures.style import new_figure, paper_style

LINE, CLIQUE = 0.17, 0.09
"""Inches between two names, and between two bars."""


@paper_style()
def draw_ranks(ranks: Mapping[str, float], cd: float, cliques: Sequence[Collection[str]], width: float) -> Figure:
    """Demšar's diagram; the best system, of rank 1, stands left.

    Parameters
    ----------
    ranks : mapping
        The mean rank of each system, between 1 and their number.
    cd : float
        The critical difference of ranks; drawn as a ruler.
    cliques : sequence
        Groups of systems that do not differ; each is a thick bar over the ranks of its members.
    width : float
        In inches.
    """
    best_first = sorted(ranks, key=lambda label: ranks[label])
    wide = [clique for clique in cliques if len(clique) > 1]
    half = -(-len(ranks) // 2)
    top, below = 0.45, 0.12 + CLIQUE * len(wide)
    height = top + below + LINE * half + 0.12
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # everything has its place in inches
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    margin = min(0.42 * width, 0.2 + 0.065 * (5 + max(map(len, ranks))))
    last = max(len(ranks), 2)

    def at(rank: float) -> float:
        return margin + (rank - 1) / (last - 1) * (width - 2 * margin)

    _scale(axes, at(1), at(last), last, top, cd * (at(2) - at(1)), cd)
    for number, clique in enumerate(wide):
        found = [ranks[label] for label in clique]
        y = top + 0.1 + CLIQUE * number
        axes.plot([at(min(found)) - 0.03, at(max(found)) + 0.03], [y, y], color="black", linewidth=2.5, gid="clique")
    for place, label in enumerate(best_first):
        left = place < half
        y = top + below + LINE * ((place if left else len(ranks) - 1 - place) + 0.5)
        edge = margin - 0.08 if left else width - margin + 0.08
        x = at(ranks[label])
        axes.plot([x, x, edge], [top, y, y], color="black", linewidth=0.6, gid="rank")
        name = f"{label} {ranks[label]:.2f}" if left else f"{ranks[label]:.2f} {label}"
        axes.text(
            edge - 0.04 if left else edge + 0.04, y, name,
            ha="right" if left else "left", va="center",
        )  # fmt: skip
    return figure


def _scale(axes: Axes, start: float, stop: float, last: int, y: float, difference: float, cd: float) -> None:
    axes.plot([start, stop], [y, y], color="black", linewidth=0.8)
    for rank in range(1, last + 1):
        x = start + (rank - 1) / (last - 1) * (stop - start)
        axes.plot([x, x], [y - 0.05, y], color="black", linewidth=0.8)
        axes.text(x, y - 0.07, str(rank), ha="center", va="bottom", fontsize=6.5)
    axes.plot([start, start + difference], [0.16, 0.16], color="black", linewidth=1.0, marker="|", gid="cd")
    axes.text(start + difference / 2, 0.11, f"CD = {cd:.2f}", ha="center", va="bottom", fontsize=6.5)
