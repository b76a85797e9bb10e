"""Everything that the page shows, as plain JSON values; numbers are those of the run's tables, not rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import System
from coterie.evaluation.summary import NOT_OF_THE_RUN
from coterie.reports.opened import OpenedRun
from coterie.reports.page.links import links_of
from coterie.reports.page.packing import evenly, packed
from coterie.reports.series import curves, gains, reported_only

CURVE_CELLS = 300_000
"""Of clients' own curves: so many numbers are kept, in rounds that lie evenly; none where that would be few rounds."""

FEWEST_ROUNDS = 10

DETAILED_CLIENTS = 2_000
"""Above that many clients the page has no view of each single one."""

LISTED_FAILURES = 200


def content(run: OpenedRun) -> dict[str, Any]:
    """What the page is about, by section.

    A number is a JSON number, or null where it is not defined; long arrays are base64 text of little-endian numbers
    (``{"kind": "f8", "shape": [...], "bytes": "..."}``).
    """
    names = _clients(run)
    return {
        "about": {
            "name": run.about.name,
            "task": run.about.task,
            "metric": run.metric,
            "larger_is_better": run.larger_is_better,
            "in_points": run.in_points,
            "report": run.about.report,
            "rounds": run.about.rounds,
            "seeds": list(run.about.seeds),
            "reference": run.about.label(run.about.reference),
        },
        "labels": [run.about.label(system) for system in run.systems],
        "clients": _portrait(run, names),
        "summary": _plain(summary_rows(run)),
        "curves": {split: _curves(run, split) for split in ("test", "validation")},
        "gains": _gains(run, names),
        "described": _described(run, names),
        "own_curves": _own_curves(run, names),
        "links": {run.about.label(system): _plain(found) for system in run.systems if (found := links_of(run, system))},
        "strengths": _strengths(run, names),
        "notes": _notes(run),
        "traffic": _traffic(run, names),
        "failures": _failures(run),
    }


def summary_rows(run: OpenedRun) -> list[dict[str, Any]]:
    """The rows of the summary, none where the systems cannot be summarised."""
    try:
        return run.rows
    except CoterieError:
        return []


def _clients(run: OpenedRun) -> list[str]:
    """All clients, those of the portrait first, in its order; newcomers that were held out with its seed come last."""
    known = [str(name) for name in run.portrait["names"]] if run.portrait else []
    met = run.tables.clients["client"].astype(str).unique().tolist()
    there = set(met or known)
    return list(dict.fromkeys([*(name for name in known if name in there), *met]))


def _portrait(run: OpenedRun, names: list[str]) -> dict[str, Any]:
    """The clients' names, and what is known of their data with the first seed, in the same order."""
    found: dict[str, Any] = {"names": names}
    if run.portrait is None:
        return found
    place = {str(name): i for i, name in enumerate(run.portrait["names"])}
    rows = [place.get(name) for name in names]

    def reordered(column: list[Any]) -> list[Any]:
        return [None if row is None else column[row] for row in rows]

    for key in ("source", "task", "classes", "labels", "feature_shape", "samples"):
        found[key] = run.portrait.get(key)
    found["n"] = {split: reordered(column) for split, column in run.portrait.get("n", {}).items()}
    found["columns"] = {key: reordered(column) for key, column in run.portrait.get("columns", {}).items()}
    for key in ("class_counts", "similarity_mean"):
        if run.portrait.get(key) is not None:
            found[key] = reordered(run.portrait[key])
    if run.portrait.get("features") is not None:
        found["features"] = {key: reordered(table) for key, table in run.portrait["features"].items()}
    return found


def _curves(run: OpenedRun, split: str) -> dict[str, Any]:
    table = curves(run, split)
    columns = ("round", "mean", "std", "seeds", "bytes")
    return {str(label): _columns(rows, columns) for label, rows in table.groupby("label", sort=False)}


def _gains(run: OpenedRun, names: list[str]) -> dict[str, Any]:
    table = gains(run)
    place = {name: i for i, name in enumerate(names)}
    table["client"] = table["client"].map(place)
    columns = ("client", "n", "value", "alone", "gain", "gain_std", "seeds")
    return {str(label): _columns(rows, columns) for label, rows in table.groupby("label", sort=False)}


def _described(run: OpenedRun, names: list[str]) -> dict[str, Any] | None:
    """The gains with the seed whose data are described, where seeds may divide them differently."""
    if run.divided_once:
        return None
    seed = run.about.seeds[0]
    return {"seed": seed, "gains": _gains(run.of_seed(seed), names)}


def _columns(rows: pd.DataFrame, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _plain(rows[name].tolist()) for name in names}


def _own_curves(run: OpenedRun, names: list[str]) -> dict[str, Any]:
    """Each client's test result by round, mean over seeds: rounds, and values ``(rounds, clients)``, by label."""
    rows = run.tables.clients
    rows = rows[(rows["phase"] == "evaluate") & (rows["split"] == "test") & (rows["metric"] == run.metric)]
    most = CURVE_CELLS // max(1, len(names) * max(1, len(run.systems)))
    if most < FEWEST_ROUNDS:
        return {}
    drawn = [system for system in run.systems if not reported_only(_of(rows, system), rows)]
    return {run.about.label(system): found for system in drawn if (found := _by_round(rows, system, names, most))}


def _by_round(rows: pd.DataFrame, system: System, names: list[str], most: int) -> dict[str, Any] | None:
    """Rounds and mean over seeds ``(rounds, clients)`` of one value a client and round; None without any."""
    own = _of(rows, system)
    if own.empty:
        return None
    chosen = evenly(np.unique(own["round"].to_numpy()), most)
    own = own[own["round"].isin(chosen)]
    table = own.assign(client=own["client"].astype(str)).pivot_table(
        index="round", columns="client", values="value", aggfunc="mean"
    )
    values = table.reindex(columns=names).to_numpy(dtype=np.float64)
    return {"rounds": table.index.tolist(), "values": packed(values)}


def _strengths(run: OpenedRun, names: list[str]) -> dict[str, Any]:
    """Each client's own numbers such as lambda_k by round, by label and name."""
    rows = run.tables.clients
    metrics = rows["metric"].astype(str)
    rows = rows[(rows["phase"] == "train") & ~metrics.str.startswith("bytes_")]
    most = max(FEWEST_ROUNDS, CURVE_CELLS // max(1, len(names)))
    found: dict[str, dict[str, Any]] = {}
    for system in run.systems:
        for name in _of(rows, system)["metric"].astype(str).unique():
            found.setdefault(run.about.label(system), {})[name] = _by_round(
                rows[rows["metric"] == name], system, names, most
            )
    return found


def _notes(run: OpenedRun) -> dict[str, Any]:
    """A method's own numbers by round, mean over seeds, by name and label."""
    history = run.tables.history
    rows = history[(history["phase"] == "train") & ~history["metric"].astype(str).str.startswith("bytes_")]
    found: dict[str, dict[str, Any]] = {}
    for system in run.systems:
        for metric, own in _of(rows, system).groupby("metric", sort=False, observed=True):
            means = own.groupby("round")["value"].mean()
            series = {"round": means.index.tolist(), "mean": _plain(means.tolist())}
            found.setdefault(str(metric), {})[run.about.label(system)] = series
    return found


def _traffic(run: OpenedRun, names: list[str]) -> dict[str, Any]:
    """Bytes of each client over a whole run, evaluation excluded: by label and direction, (K,).

    Means over the seeds with which it was a member, since newcomers that are held out are others with each seed.
    """
    if len(names) > DETAILED_CLIENTS:
        return {}
    members = run.tables.clients[run.tables.clients["phase"] != "newcomer"]
    members = members.assign(client=members["client"].astype(str))
    way = members["metric"].astype(str).str.extract(r"^bytes_(up|down|peer):", expand=False)
    rows = members.assign(way=way)[way.notna() & ~members["phase"].isin(NOT_OF_THE_RUN)]
    found: dict[str, Any] = {}
    for system in run.systems:
        own = _of(rows, system)
        if own.empty:
            continue
        seeds = _of(members, system).groupby("client")["seed"].nunique()
        totals = own.groupby(["way", "client"])["value"].sum().div(seeds, level="client")
        found[run.about.label(system)] = {
            str(direction): _plain(totals[direction].reindex(names).tolist())
            for direction in totals.index.get_level_values("way").unique()
        }
    return found


def _failures(run: OpenedRun) -> dict[str, Any]:
    """Clients that could not finish a round, the last first."""
    table = run.tables.failures
    shown = table.iloc[::-1].head(LISTED_FAILURES)
    rows = [
        {
            "label": run.about.label((str(row["algorithm"]), str(row["variant"]))),
            "seed": int(row["seed"]),
            "round": int(row["round"]),
            "client": str(row["client"]),
            "reason": str(row["reason"]),
        }
        for row in shown.to_dict("records")
    ]
    return {"count": len(table), "rows": rows}


def _of(rows: pd.DataFrame, system: System) -> pd.DataFrame:
    return rows[(rows["algorithm"] == system[0]) & (rows["variant"] == system[1])]


def _plain(value: Any) -> Any:
    """Numbers that JSON does not know become None, at any depth."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
