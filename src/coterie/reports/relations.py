"""Who learns from whom by round, as data frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import System
from coterie.reports.opened import OpenedRun
from coterie.runs import load_relations


@dataclass(frozen=True)
class Relations:
    """The stored relations of one system with one seed.

    Attributes
    ----------
    label : str
        The system.
    seed : int
    name : str
        Which of the system's matrices.
    rounds : dict
        By round, ascending, clients by clients ``(K, K)``: row i says what client i takes, column j from whom; NaN
        where nothing is known.
    """

    label: str
    seed: int
    name: str
    rounds: dict[int, pd.DataFrame]


def relations(run: OpenedRun, system: System, seed: int | None = None, matrix: str | None = None) -> Relations | None:
    """What a system has stored, with the first seed that has any unless ``seed`` is given; None where there is nothing.

    Of several matrices, without ``matrix``, the first whose rows are shares (they add up to 1), else the first.

    Raises
    ------
    CoterieError
        A file is damaged, or the system has matrices, but none called ``matrix``.
    """
    for chosen in run.about.seeds if seed is None else (seed,):
        stored = load_relations(run.directory, *system, chosen)
        if not stored:
            continue
        label, last = run.about.label(system), stored[max(stored)]
        names = [name for name in last if name != "clients"]
        if matrix is not None and matrix not in names:
            raise CoterieError(f"{label} has no relations called '{matrix}'; it has {', '.join(names)}.")
        name = matrix or next((each for each in names if _shares(last[each])), names[0])
        frames = {
            number: pd.DataFrame(content[name], index=content["clients"], columns=content["clients"])
            for number, content in sorted(stored.items())
            if name in content
        }
        return Relations(label, chosen, name, frames)
    return None


def _shares(matrix: np.ndarray) -> bool:
    """Whether the rows that are known are shares."""
    known = matrix[~np.isnan(matrix).any(axis=1)]
    return bool(len(known)) and bool((known >= -1e-6).all()) and bool(np.allclose(known.sum(axis=1), 1.0, atol=1e-3))
