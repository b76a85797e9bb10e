"""What plots and tables show, as data frames."""

from __future__ import annotations

import numpy as np
import pandas as pd

from coterie.evaluation import gain_scale
from coterie.reports.opened import OpenedRun

BY_CLIENT = ("label", "client", "n", "value", "alone", "gain", "gain_std", "seeds")
CURVE = ("label", "round", "mean", "std", "seeds", "bytes")


def gains(run: OpenedRun) -> pd.DataFrame:
    """What each client reaches with each system at the reported rounds, and what it gains over training alone.

    One row a system and client, means over the seeds that the client has results with (columns ``BY_CLIENT``):
    ``n`` test examples, ``value`` and ``alone`` in the run's metric, ``gain`` larger is better (percentage points for
    an accuracy, the difference of errors for a regression) over the seeds that LOCAL has too, ``gain_std`` its
    deviation over them (``ddof=1``, 0 for one seed). What is undefined is NaN.
    """
    scale = gain_scale(run.metric)
    frames = []
    for system in run.systems:
        for seed in run.seeds(system):
            own = run.results[(*system, seed)]
            alone = run.results.get((*run.about.reference, seed))
            frame = pd.DataFrame({"n": own.n, "value": own.values})
            frame["alone"] = np.nan if alone is None else alone.values.reindex(frame.index).to_numpy()
            frame["gain"] = scale * (frame["value"] - frame["alone"])
            frames.append(frame.assign(label=run.about.label(system), seed=seed).rename_axis("client").reset_index())
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype="float64") for name in BY_CLIENT})
    rows = pd.concat(frames, ignore_index=True)
    rows["client"] = rows["client"].astype(str)
    table = rows.groupby(["label", "client"], sort=False).agg(
        n=("n", "mean"),
        value=("value", "mean"),
        alone=("alone", "mean"),
        gain=("gain", "mean"),
        gain_std=("gain", lambda values: 0.0 if values.count() == 1 else values.std()),
        seeds=("seed", "count"),
    )
    return table.reset_index()[list(BY_CLIENT)]


def curves(run: OpenedRun, split: str = "test", metric: str | None = None) -> pd.DataFrame:
    """The mean over clients by evaluated round, over seeds (columns ``CURVE``).

    ``mean`` and ``std`` (``ddof=1``, 0 for one seed) are over the ``seeds`` that have come to that round, ``bytes`` is
    what all clients together have sent and received until then, evaluation excluded, mean over seeds. A system with
    results in its reported round alone, as under a guard, has no curve.
    """
    history, name = run.tables.history, metric or run.metric
    chosen = history[(history["phase"] == "evaluate") & (history["split"] == split) & (history["metric"] == name)]
    frames = []
    for system in run.systems:
        own = chosen[(chosen["algorithm"] == system[0]) & (chosen["variant"] == system[1])]
        if reported_only(own, chosen):
            continue
        by_round = own.pivot_table(index="round", columns="seed", values="value", aggfunc="last").sort_index()
        if by_round.empty:
            continue
        sent = _bytes_so_far(run, system, by_round)
        count = by_round.count(axis=1)
        frames.append(
            pd.DataFrame(
                {
                    "label": run.about.label(system),
                    "round": by_round.index,
                    "mean": by_round.mean(axis=1),
                    "std": by_round.std(axis=1).where(count > 1, 0.0),
                    "seeds": count,
                    "bytes": sent,
                }
            )
        )
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype="float64") for name in CURVE})
    return pd.concat(frames, ignore_index=True)


def reported_only(own: pd.DataFrame, everyone: pd.DataFrame) -> bool:
    """Whether a system has results in one round a seed, another one for each, where others have several.

    A line through these would compare seeds, not rounds. Both tables have columns ``seed`` and ``round``.
    """
    return everyone["round"].nunique() > 1 and bool((own.groupby("seed")["round"].nunique() <= 1).all())


def _bytes_so_far(run: OpenedRun, system: tuple[str, str], results: pd.DataFrame) -> np.ndarray:
    """Bytes of all clients up to each round of ``results``, mean over the seeds that have one there, ``(R,)``."""
    history = run.tables.history
    own = history[(history["algorithm"] == system[0]) & (history["variant"] == system[1])]
    own = own[own["metric"].astype(str).str.startswith("bytes_") & ~own["phase"].isin(("evaluate", "newcomer"))]
    if own.empty:
        return np.zeros(len(results))
    by_round = own.pivot_table(index="round", columns="seed", values="value", aggfunc="sum").sort_index().cumsum()
    sent = by_round.ffill().reindex(results.index, method="ffill").reindex(columns=results.columns).fillna(0.0)
    return sent.where(results.notna()).mean(axis=1).to_numpy()
