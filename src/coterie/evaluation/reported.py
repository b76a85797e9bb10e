"""What each run reaches at the round that its protocol reports."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation.protocol import Report, choose_round
from coterie.evaluation.tables import RUN

System = tuple[str, str]
"""A method with its options, as (algorithm, variant)."""

RunKey = tuple[str, str, int]
"""A system and a seed."""


@dataclass(frozen=True)
class Reported:
    """What one run reaches at its reported ``round``.

    ``values`` and ``n`` (test examples) are by client name, ``(K,)``; ``curve`` is the mean test result over clients
    by evaluated round.
    """

    round: int
    values: "pd.Series[float]"
    n: "pd.Series[float]"
    curve: "pd.Series[float]"


def reported(clients: pd.DataFrame, metric: str, report: Report) -> dict[RunKey, Reported]:
    """Return the reported result of every run that has test results, in order of appearance.

    Args:
        clients: the client table (columns ``CLIENTS``) of all runs.
        metric: ``accuracy``, or ``mae``.
        report: the protocol that chooses the round of each run.

    Raises:
        CoterieError: ``best_val`` without validation data, or a chosen round without test results.

    """
    rows = of_whoever_came(clients[(clients["phase"] == "evaluate") & (clients["metric"] == metric)])
    results: dict[RunKey, Reported] = {}
    for _, run in rows.groupby(list(RUN), sort=False, observed=True):
        test = run[run["split"] == "test"]
        if test.empty:
            continue
        chosen = choose_round(run, report, metric=metric)
        at_chosen = test[test["round"] == chosen].set_index("client")
        algorithm, variant, seed = (run[name].iloc[0] for name in RUN)
        if at_chosen.empty:
            raise CoterieError(
                f"{default_label((algorithm, variant))}, seed {seed}: round {chosen} has validation results but no "
                "test results; evaluate both in the same rounds."
            )
        finite = test[np.isfinite(test["value"])]
        curve = finite.groupby("round")["value"].mean()
        results[(str(algorithm), str(variant), int(seed))] = Reported(chosen, at_chosen["value"], at_chosen["n"], curve)
    return results


def of_whoever_came(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of clients with examples; before a client has joined it has none yet, but it has no result, which counts."""
    largest = rows.groupby(["seed", "split", "client"], observed=True)["n"].transform("max")
    rows = rows.assign(n=largest, value=rows["value"].where(rows["n"] > 0))
    return rows[rows["n"] > 0]


def default_label(system: System) -> str:
    """Return the name of a system that has no other."""
    return f"{system[0]} ({system[1]})" if system[1] else system[0]
