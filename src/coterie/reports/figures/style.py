"""How all figures look: columns of papers, colours that everybody tells apart, marks that outlive a grey copy."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

WIDTHS = {"single": 3.3, "double": 6.9}
"""Columns of two-column papers, in inches."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette but for its yellow, which is too light for lines on white."""

LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1)))
MARKERS = "osD^vPX*<>"
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
ALONE, HARMED, UNKNOWN = "#7F7F7F", "#D55E00", "#E6E6E6"
"""Colours of training alone, of clients that lose, and of what is not known."""

NAME_INCHES = 0.095
"""Room that the name of a client takes beside the next, upright."""

LETTER_INCHES = 0.06

_STYLE: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that figures are the same everywhere
    "font.size": 7.0,
    "axes.labelsize": 7.0,
    "axes.titlesize": 7.0,
    "axes.titlepad": 4.0,
    "figure.titlesize": 8.0,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # the name of a client may hold a dollar
    "figure.dpi": 300,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType, embedded, as publishers want them
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "coterie",  # the same figure is the same file
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw and save within it; settings of the caller are as before afterwards. Also a decorator."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]  # the stubs list every key
        yield


@dataclass(frozen=True)
class Look:
    """How one system is drawn wherever it appears."""

    colour: str
    line: Any
    marker: str
    hatch: str


def looks(labels: Sequence[str], alone: Collection[str] = ()) -> dict[str, Look]:
    """The look of each of ``labels``; those in ``alone``, which train alone, are grey and dashed."""
    found: dict[str, Look] = {}
    for label in labels:
        if label in alone:
            found[label] = Look(ALONE, (0, (3, 2)), "", "")
            continue
        place = len(found.keys() - set(alone))
        found[label] = Look(
            COLOURS[place % len(COLOURS)],
            LINES[place % len(LINES)],
            MARKERS[(place + place // (len(COLOURS) * len(LINES))) % len(MARKERS)],
            HATCHES[(place + place // len(COLOURS)) % len(HATCHES)],
        )
    return found


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, apart from any that pyplot knows."""
    layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03)
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def grid(figure: Figure, count: int, columns: int, **shared: Any) -> list[Axes]:
    """``count`` panels, row by row; places that are left over in the last row stay empty."""
    rows = math.ceil(count / columns)
    axes: list[Axes] = figure.subplots(rows, columns, squeeze=False, **shared).flatten().tolist()
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def legend_above(figure: Figure, handles: Mapping[str, Any]) -> None:
    """A legend above all panels, in as few rows as the width allows."""
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            list(handles.values()), list(handles), loc="outside upper center", ncols=columns, borderpad=0.2
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width * 0.98:
            return
        legend.remove()


def short_names(names: Sequence[str]) -> list[str]:
    """Names for ticks: of ``client-00, client-01`` the numbers alone; others cut to 14 letters.

    They lose their end, their middle where two would be equal, and nothing where they would be so even then.
    """
    found = [re.fullmatch(r"client-(\d+)", name) for name in names]
    numbers = [str(int(match[1])) for match in found if match]
    if all(found) and len(set(numbers)) == len(set(names)):
        return numbers
    short = {name: _cut(name, 13) for name in names}
    for start in (6, None):
        times = Counter(short.values())
        short = {name: cut if times[cut] == 1 else _cut(name, start) for name, cut in short.items()}
    return [short[name] for name in names]


def _cut(name: str, start: int | None) -> str:
    """A name of at most 14 letters, with an ellipsis after so many of its first ones; whole for None."""
    if start is None or len(name) <= 14:
        return name
    return f"{name[:start]}…{name[len(name) - 13 + start :]}"


def name_ticks(axis: Axis, names: Sequence[str], inches: float, places: Sequence[float] | None = None) -> None:
    """Clients' names as ticks of an axis that is ``inches`` long; only some of them where it has no room for all."""
    positions = list(range(len(names))) if places is None else list(places)
    short = short_names(names)
    step = _step(len(names), max(1, int(inches / NAME_INCHES)))
    upright = (
        isinstance(axis, XAxis) and (max(map(len, short), default=0) + 1) * LETTER_INCHES * len(short) / step > inches
    )
    axis.set_ticks(positions[::step], short[::step], rotation=90 if upright else 0)
    axis.set_tick_params(length=0)


def _step(count: int, room: int) -> int:
    """Every how many-th of ``count`` is named where ``room`` names fit: 1, 2, 5, 10, 20, ..."""
    if count <= room:
        return 1
    least = count / room
    power = 10 ** math.floor(math.log10(least))
    return next(int(power * factor) for factor in (1, 2, 5, 10) if power * factor >= least)
