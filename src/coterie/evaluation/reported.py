"""What each run reaches at the round that its protocol reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation.catalogue import METRICS, OBJECTIVES
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
    by evaluated round. ``others`` are the values of the other metrics in that round; ``undefined`` says, by metric
    and client, why there is none.
    """

    round: int
    values: "pd.Series[float]"
    n: "pd.Series[float]"
    curve: "pd.Series[float]"
    others: Mapping[str, "pd.Series[float]"] = field(default_factory=dict)
    undefined: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def reported(
    clients: pd.DataFrame, metric: str, report: Report, undefined: pd.DataFrame | None = None
) -> dict[RunKey, Reported]:
    """Return the reported result of every run that has test results, in order of appearance.

    Args:
        clients: the client table (columns ``CLIENTS``) of all runs.
        metric: in which they are reported, and by which the round is chosen.
        report: the protocol that chooses the round of each run.
        undefined: what is known of values that there cannot be (columns ``UNDEFINED``).

    Raises:
        CoterieError: ``best_val`` without validation data, or a chosen round without test results.

    """
    evaluated = clients[clients["phase"] == "evaluate"]
    rows = of_whoever_came(evaluated[evaluated["metric"] == metric])
    more = [name for name in _summarised(evaluated) if name != metric]
    tested = evaluated[(evaluated["split"] == "test") & evaluated["metric"].isin(more)]
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
        key = (str(algorithm), str(variant), int(seed))
        others = _others(tested, key, chosen, at_chosen.index)
        values = at_chosen["value"]
        why = _reasons(undefined, key, {metric: values, **others}, chosen)
        results[key] = Reported(chosen, values, at_chosen["n"], curve, others, why)
    return results


def _summarised(evaluated: pd.DataFrame) -> list[str]:
    """The metrics in which results are given, as they first appear; what else was evaluated is in the history."""
    names = (str(name) for name in evaluated["metric"].unique())
    return [name for name in names if name.partition(":")[0] in METRICS and name not in OBJECTIVES]


def _others(tested: pd.DataFrame, run: RunKey, round: int, clients: pd.Index) -> dict[str, "pd.Series[float]"]:
    """The values in one round of a run by metric, for these clients."""
    algorithm, variant, seed = (tested[name] == value for name, value in zip(RUN, run, strict=True))
    own = tested[algorithm & variant & seed & (tested["round"] == round)]
    return {
        str(name): rows.set_index("client")["value"].reindex(clients)
        for name, rows in own.groupby("metric", sort=False, observed=True)
    }


def _reasons(
    undefined: pd.DataFrame | None, run: RunKey, values: Mapping[str, "pd.Series[float]"], round: int
) -> dict[str, dict[str, str]]:
    """Why clients have no finite value of a metric, and why clients without test data have none at all."""
    known: dict[str, dict[str, str]] = {}
    if undefined is not None and len(undefined):
        algorithm, variant, seed = (undefined[name] == value for name, value in zip(RUN, run, strict=True))
        for row in undefined[algorithm & variant & seed & (undefined["split"] == "test")].to_dict("records"):
            known.setdefault(str(row["metric"]), {})[str(row["client"])] = str(row["reason"])
    found = {}
    for metric, own in values.items():
        defined = np.isfinite(own.to_numpy(dtype=np.float64))
        with_value = {str(client) for client in own.index[defined]}
        why = {client: reason for client, reason in known.get(metric, {}).items() if client not in with_value}
        for client in own.index[~defined]:
            why.setdefault(str(client), f"no result in round {round}, as it was away or failed")
        if why:
            found[metric] = why
    return found


def of_whoever_came(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of clients with examples; before a client has joined it has none yet, but it has no result, which counts."""
    largest = rows.groupby(["seed", "split", "client"], observed=True)["n"].transform("max")
    rows = rows.assign(n=largest, value=rows["value"].where(rows["n"] > 0))
    return rows[rows["n"] > 0]


def default_label(system: System) -> str:
    """Return the name of a system that has no other."""
    return f"{system[0]} ({system[1]})" if system[1] else system[0]
