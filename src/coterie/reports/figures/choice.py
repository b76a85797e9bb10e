"""What a person wants to see in a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.reports.figures.style import WIDTHS

Over = Literal["round", "bytes"]
Shape = Literal["matrix", "graph", "weights"]


@dataclass(frozen=True)
class Choice:
    """What to draw of the runs; the defaults show everything there is.

    Attributes
    ----------
    systems : tuple of str
        Labels, or names of methods; none means all.
    seed : int, optional
        One seed instead of the mean over all.
    split, metric : str, str or None
        What curves are of; no metric means the run's.
    over : {"round", "bytes"}
        The horizontal axis of curves.
    rounds : tuple of int
        Of relations; none means the last.
    matrix : str, optional
        Which of a method's relations.
    shape : {"matrix", "graph", "weights"}
        How relations are drawn.
    clients : tuple of str
        Whose weights by round; none means the first four.
    against : str
        What gains are drawn against: ``n``, ``similarity`` or a column of the clients, such as ``angle``.
    order : str, optional
        Of clients: ``client``, ``value``, ``similar`` or a column of the clients.
    width : float
        In inches.
    """

    systems: tuple[str, ...] = ()
    seed: int | None = None
    split: str = "test"
    metric: str | None = None
    over: Over = "round"
    rounds: tuple[int, ...] = ()
    matrix: str | None = None
    shape: Shape = "matrix"
    clients: tuple[str, ...] = ()
    against: str = "n"
    order: str | None = None
    width: float = WIDTHS["single"]
