"""The summary of a run: one row a system, over its seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coterie.evaluation.catalogue import Metric, main_metric, metric_of
from coterie.evaluation.metrics import macro, rounds_to_target, weighted, worst, worst_decile
from coterie.evaluation.protocol import Report
from coterie.evaluation.reported import Reported, RunKey, System, default_label, reported
from coterie.evaluation.tables import Tables, Task
from coterie.evaluation.transfer import Relative, align, individual_gain, ptr, ptr_mae, r_acc, r_mae

NOT_OF_THE_RUN = ("evaluate", "newcomer")
"""Phases whose bytes are not part of what training costs."""

ACCURACY_KEYS = ("accuracy_mean", "accuracy_std", "accuracy_weighted_mean", "accuracy_weighted_std")
"""Present in every row, None for a regression."""


@dataclass(frozen=True)
class _Transfer:
    """One run against LOCAL with the same seed."""

    relative: Relative
    ptr: float
    gain: NDArray[np.float64]  # (K,), larger is better
    harmed: int


def summarise(
    tables: Tables,
    *,
    task: Task = "classification",
    report: Report = "best_val",
    targets: Sequence[float] = (),
    reference: System = ("local", ""),
    labels: Mapping[System, str] | None = None,
    results: Mapping[RunKey, Reported] | None = None,
    metric: str | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of ``summary.json``, one a system, in the order in which the systems first appear.

    Every number is computed for each seed and then averaged over seeds; ``*_std`` of accuracy, R-Acc, PTR
    (and MAE, R-MAE) is the standard deviation over seeds (``ddof=1``, 0 for one seed), while ``gain_std``
    is the population standard deviation over clients, averaged over seeds. Accuracies are fractions, gains
    percentage points. What is undefined is None, never NaN. A seed without test results yet is left out; a
    comparison with LOCAL covers the seeds that LOCAL has as well. Each system, LOCAL too, is taken at the
    round that the protocol chooses for it.

    Args:
        tables: the tables of the run.
        task: ``regression`` reports the mean absolute error (``mae_*``, ``r_mae``) in place of the accuracy.
        metric: in which the run is reported, in place of the task's own; shares (AUROC, F1) are compared with LOCAL as
            accuracies are (``r_acc``, gain in points), errors as the mean absolute error is (``r_rmse``).
        report: the protocol that chooses the reported round of each run.
        targets: mean test accuracies (or errors) for ``rounds_to_target``; a target that any seed misses
            has None.
        reference: the system that trains alone, LOCAL.
        labels: names to print, by system; default ``algorithm (variant)``.
        results: those of `reported`, where they are known already; the client table is not read then.

    Raises:
        CoterieError: ``best_val`` without validation data, or LOCAL with other clients.

    """
    name = main_metric(task, metric)
    kind = metric_of(name)
    if results is None:
        results = reported(tables.clients, name, report, tables.undefined)
    systems = list(dict.fromkeys((algorithm, variant) for algorithm, variant, _ in results))
    rows = []
    for system in systems:
        by_seed = {key[2]: result for key, result in results.items() if key[:2] == system}
        alone = {seed: results[(*reference, seed)] for seed in by_seed if (*reference, seed) in results}
        row: dict[str, Any] = {
            "algorithm": system[0],
            "variant": system[1] or None,
            "label": (labels or {}).get(system) or default_label(system),
            "reference": system == reference,
            "seeds": list(by_seed),
            "rounds": _last_round(tables.history, system),
            "report": report,
            "optimistic": report == "best_test",
            "chosen_rounds": [result.round for result in by_seed.values()],
        }
        row["metric"] = name
        row |= _quality(by_seed, name)
        row |= _against_local(by_seed, alone, name)
        row["undefined"] = _undefined(by_seed)
        row["rounds_to_target"] = {
            f"{target:.12g}": _mean_round(by_seed.values(), target, kind.larger_is_better) for target in targets
        }
        row |= _cost(tables, system, list(by_seed))
        failures = _of(tables.failures, system)
        row["failed_clients"] = sorted(set(failures["client"].astype(str)))
        rows.append(row)
    return rows


def _quality(by_seed: Mapping[int, Reported], metric: str) -> dict[str, Any]:
    """Return how good the models are: mean, weighted mean, and the clients that fare worst; then the other metrics."""
    up = metric_of(metric).larger_is_better
    results = list(by_seed.values())
    row: dict[str, Any] = dict.fromkeys(ACCURACY_KEYS)
    row |= _mean_std(metric, [macro(r.values) for r in results])
    row |= _mean_std(f"{metric}_weighted", [weighted(r.values, r.n) for r in results])
    row["worst"] = _mean([worst(r.values, larger_is_better=up) for r in results])
    row["worst_decile"] = _mean([worst_decile(r.values, larger_is_better=up) for r in results])
    row["clients"] = max(len(r.values) for r in results)
    row["clients_without_result"] = sum(int((~np.isfinite(r.values)).sum()) for r in results)
    for name in dict.fromkeys(name for r in results for name in r.others):
        having = [r for r in results if name in r.others]
        row |= _mean_std(name, [macro(r.others[name]) for r in having])
        if name == "accuracy":
            row |= _mean_std("accuracy_weighted", [weighted(r.others[name], r.n) for r in having])
    return row


def _undefined(by_seed: Mapping[int, Reported]) -> dict[str, dict[str, str]]:
    """Return by metric which clients have no value, and why; the seeds where it is not so with all of them."""
    told: dict[str, dict[str, dict[str, list[int]]]] = {}
    for seed, result in by_seed.items():
        for metric, clients in result.undefined.items():
            for client, reason in clients.items():
                told.setdefault(metric, {}).setdefault(client, {}).setdefault(reason, []).append(seed)

    def sentence(reasons: Mapping[str, Sequence[int]]) -> str:
        if [len(seeds) for seeds in reasons.values()] == [len(by_seed)]:
            return next(iter(reasons))
        return "; ".join(
            f"{reason} with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            for reason, seeds in reasons.items()
        )

    return {
        metric: {client: sentence(reasons) for client, reasons in clients.items()} for metric, clients in told.items()
    }


def _against_local(by_seed: Mapping[int, Reported], alone: Mapping[int, Reported], metric: str) -> dict[str, Any]:
    """Return who gained and who lost against LOCAL, over the seeds that both have."""
    kind = metric_of(metric)
    transfers = [_transfer(by_seed[seed].values, alone[seed].values, kind) for seed in alone]
    row: dict[str, Any] = {"r_acc": None, "r_acc_std": None}
    if (relative := relative_key(metric)) is not None:
        row[relative], row[f"{relative}_std"] = _mean_and_std([t.relative.value for t in transfers])
    row["ptr"], row["ptr_std"] = _mean_and_std([t.ptr for t in transfers])
    row["gain_mean"] = row["gain_std"] = None
    if kind.is_share:  # percentage points make sense for shares only
        row["gain_mean"] = _mean([macro(t.gain) for t in transfers])
        row["gain_std"] = _mean([_population_std(t.gain) for t in transfers])
    row["harmed"] = sum(t.harmed for t in transfers) if transfers else None
    row["compared"] = sum(int(np.isfinite(t.gain).sum()) for t in transfers) if transfers else None
    row["local_zero"] = sum(t.relative.left_out for t in transfers) if transfers else None
    return row


def relative_key(metric: str) -> str | None:
    """The key of the mean relative gain: ``r_acc`` for shares, ``r_mae``, ``r_rmse`` for errors; R² has none."""
    kind = metric_of(metric)
    return "r_acc" if kind.is_share else f"r_{metric}" if kind.is_error else None


def _transfer(values: "pd.Series[float]", local: "pd.Series[float]", kind: Metric) -> _Transfer:
    """Compare one run, by client, with LOCAL of the same seed."""
    ours, alone = align(values, local)
    if kind.larger_is_better:
        gain = individual_gain(ours, alone)
        return _Transfer(r_acc(ours, alone), ptr(ours, alone), gain, int((gain < 0).sum()))
    with np.errstate(invalid="ignore"):  # both may be infinite, where both diverged
        gain = alone - ours
    return _Transfer(r_mae(ours, alone), ptr_mae(ours, alone), gain, int((gain < 0).sum()))


def _cost(tables: Tables, system: System, seeds: Sequence[int]) -> dict[str, Any]:
    """Return bytes by direction and seconds of a whole run, all clients together, mean over seeds."""
    history, timings = _of(tables.history, system), _of(tables.timings, system)
    history, timings = history[history["seed"].isin(seeds)], timings[timings["seed"].isin(seeds)]
    way = history["metric"].astype(str).str.extract(r"^bytes_(up|down|peer)(?::[^:]+)?$", expand=False)
    phase, size = history["phase"].astype(str), history["value"]

    def total(chosen: "pd.Series[bool]") -> int:
        return round(size[chosen].sum() / len(seeds))

    row: dict[str, Any] = {
        f"bytes_{name}": total((way == name) & ~phase.isin(NOT_OF_THE_RUN)) for name in ("up", "down", "peer")
    }
    row["bytes_evaluate"] = total(way.notna() & (phase == "evaluate"))
    row["seconds"] = float(timings["seconds"].sum() / len(seeds)) if len(timings) else None
    return row


def _of(table: pd.DataFrame, system: System) -> pd.DataFrame:
    """Return the rows of a table that belong to a system."""
    return table[(table["algorithm"] == system[0]) & (table["variant"] == system[1])]


def _last_round(history: pd.DataFrame, system: System) -> int | None:
    """Return the last round that a system has come to, in whichever seed went furthest."""
    rounds = _of(history, system)["round"]
    return int(rounds.max()) if len(rounds) else None


def _mean_round(results: Iterable[Reported], target: float, larger_is_better: bool) -> float | None:
    """Return the mean over seeds of the rounds to a target, None when a seed does not reach it."""
    hits = [rounds_to_target(r.curve.index, r.curve, target, larger_is_better=larger_is_better) for r in results]
    reached = [hit for hit in hits if hit is not None]
    return float(np.mean(reached)) if len(reached) == len(hits) else None


def _mean_std(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Return ``{name}_mean`` and ``{name}_std`` over seeds."""
    mean, std = _mean_and_std(values)
    return {f"{name}_mean": mean, f"{name}_std": std}


def _mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation (0 for one seed) of the defined values, None without any."""
    kept = [value for value in values if math.isfinite(value)]
    if not kept:
        return None, None
    return float(np.mean(kept)), float(np.std(kept, ddof=1)) if len(kept) > 1 else 0.0


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the defined values, None without any."""
    return _mean_and_std(values)[0]


def _population_std(values: NDArray[np.float64]) -> float:
    """Return the population standard deviation (``ddof=0``) over clients, NaN without any."""
    kept = values[np.isfinite(values)]
    return float(kept.std()) if kept.size else math.nan
