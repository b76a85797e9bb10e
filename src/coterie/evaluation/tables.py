"""The long tables that every evaluation starts from: one value a row, a *system* is (algorithm, variant)."""

from dataclasses import dataclass
from typing import Literal

import pandas as pd

Task = Literal["classification", "regression"]

RUN = ("algorithm", "variant", "seed")
"""The columns that name one run: a system and its seed."""

HISTORY = ("algorithm", "variant", "seed", "round", "phase", "split", "metric", "value")
CLIENTS = ("algorithm", "variant", "seed", "round", "phase", "split", "client", "n", "metric", "value")
TIMINGS = ("algorithm", "variant", "seed", "round", "phase", "seconds")
FAILURES = ("algorithm", "variant", "seed", "round", "client", "reason")
NEWCOMERS = ("algorithm", "variant", "seed", "labelled", "epoch", "client", "n", "metric", "value")

MAIN_METRIC: dict[Task, str] = {"classification": "accuracy", "regression": "mae"}
"""The metric in which a task is reported, and by which the reported round is chosen."""

LARGER_IS_BETTER = {"accuracy": True, "mae": False, "mse": False, "loss": False}


@dataclass(frozen=True)
class Tables:
    """What a run directory knows, as data frames in the order in which the rows came.

    ``history`` has one value a round (columns ``HISTORY``), ``clients`` one value a client and round
    (``CLIENTS``), ``timings`` seconds by phase (``TIMINGS``), ``failures`` the clients that could not
    finish (``FAILURES``).
    """

    history: pd.DataFrame
    clients: pd.DataFrame
    timings: pd.DataFrame
    failures: pd.DataFrame
