"""Facts about the clients of a run, and the orders that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from coterie.errors import CoterieError
from coterie.reports.opened import OpenedRun

FACTS = {"n": "training examples", "similarity": "mean similarity to the others"}
"""What every federation knows of its clients, as axes call it; the columns of a division come on top."""


def fact(run: OpenedRun, name: str, option: str) -> dict[str, float]:
    """A number of each client: ``n``, ``similarity``, or a column of the clients such as ``angle``.

    Raises
    ------
    CoterieError
        There is no such fact; the message names the ``option`` that asked for it.
    """
    portrait = run.portrait
    if portrait is None:
        raise CoterieError(
            f"{option} {name}: {run.directory.path} has no federation.json, which tells it of each client."
        )
    columns = {"n": portrait["n"]["train"], "similarity": portrait.get("similarity_mean"), **portrait["columns"]}
    known = {key: values for key, values in columns.items() if values is not None}
    if name not in known:
        raise CoterieError(f"{option} {name}: {run.directory.path} knows {', '.join(known)} of its clients.")
    return dict(zip(map(str, portrait["names"]), map(float, known[name]), strict=True))


def described(run: OpenedRun, seed: int | None) -> int:
    """The seed whose data the run describes; raises CoterieError where another one with other data is asked for."""
    first = run.about.seeds[0]
    if seed not in (None, first) and not run.divided_once:
        raise CoterieError(f"--seed {seed}: {run.directory.path} describes the data of seed {first}; leave it out.")
    return first


def groups(run: OpenedRun, seed: int) -> dict[str, float] | None:
    """The group of each client with a seed, where the division has groups and the run describes that of this seed."""
    if run.portrait is None or "group" not in run.portrait["columns"]:
        return None
    if seed != run.about.seeds[0] and not run.divided_once:
        return None
    return fact(run, "group", "group")


def places(names: Sequence[str], values: Mapping[str, float], run: OpenedRun, order: str | None) -> list[int]:
    """Places of clients in the order that is asked for: ``client``, ``value`` (the largest first) or a fact."""
    if order in (None, "client"):
        return list(range(len(names)))
    key = [-values[name] for name in names] if order == "value" else _by_fact(names, run, str(order))
    return [int(place) for place in np.argsort(np.asarray(key, dtype=float), kind="stable")]


def similar_places(relations: pd.DataFrame) -> list[int]:
    """Places of clients ``(K,)`` such that those that share much lie side by side; from their relations ``(K, K)``."""
    if len(relations) < 3:
        return list(range(len(relations)))
    given = relations.fillna(0.0).to_numpy(float)
    both = (given + given.T) / 2
    np.fill_diagonal(both, 0.0)
    distance = both.max() - both
    np.fill_diagonal(distance, 0.0)
    return [int(place) for place in leaves_list(linkage(squareform(distance), "average", optimal_ordering=True))]


def _by_fact(names: Sequence[str], run: OpenedRun, order: str) -> list[float]:
    found = fact(run, order, "--order")
    return [found.get(name, np.nan) for name in names]
