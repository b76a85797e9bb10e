"""The long tables that every evaluation starts from: one value a row, a *system* is (algorithm, variant)."""

from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

Task = Literal["classification", "regression"]

RUN = ("algorithm", "variant", "seed")
"""The columns that name one run: a system and its seed."""

HISTORY = ("algorithm", "variant", "seed", "round", "phase", "split", "metric", "value")
CLIENTS = ("algorithm", "variant", "seed", "round", "phase", "split", "client", "n", "metric", "value")
TIMINGS = ("algorithm", "variant", "seed", "round", "phase", "seconds")
FAILURES = ("algorithm", "variant", "seed", "round", "client", "reason")
UNDEFINED = ("algorithm", "variant", "seed", "split", "metric", "client", "reason")
NEWCOMERS = ("algorithm", "variant", "seed", "labelled", "epoch", "client", "n", "metric", "value")

MAIN_METRIC: dict[Task, str] = {"classification": "accuracy", "regression": "mae"}
"""The metric in which a task is reported, and by which the reported round is chosen, where nobody says otherwise."""


def nothing(columns: tuple[str, ...]) -> pd.DataFrame:
    """A table of these columns without rows."""
    kinds = dict.fromkeys(columns, "str") | {"seed": "int64", "round": "int64", "n": "int64"}
    kinds |= {"value": "float64", "seconds": "float64"}
    return pd.DataFrame({name: pd.Series(dtype=kinds[name]) for name in columns})


@dataclass(frozen=True)
class Tables:
    """What a run directory knows, as data frames in the order in which the rows came.

    ``history`` has one value a round (columns ``HISTORY``), ``clients`` one value a client and round
    (``CLIENTS``), ``timings`` seconds by phase (``TIMINGS``), ``failures`` the clients that could not
    finish (``FAILURES``), ``undefined`` which clients' data do not define a metric, and why (``UNDEFINED``).
    """

    history: pd.DataFrame
    clients: pd.DataFrame
    timings: pd.DataFrame
    failures: pd.DataFrame
    undefined: pd.DataFrame = field(default_factory=lambda: nothing(UNDEFINED))
