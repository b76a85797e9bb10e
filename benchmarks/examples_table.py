"""The runs of ``examples/`` as tables in Markdown: what clients gain, with intervals, and what the guard buys.

    python -m benchmarks.examples_table runs/four-hospitals --clients     # a column a client, intervals over seeds
    python -m benchmarks.examples_table runs/schools runs/landmine        # intervals over clients
    python -m benchmarks.examples_table runs/* --guard                    # the guard, over all runs and methods

Gains are percentage points of a share such as AUROC, and per cent of LOCAL's error. An interval is a 95 % bootstrap
interval: over clients, each drawn with all its seeds, or over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from coterie.evaluation import metric_of
from coterie.reports import OpenedRun, open_run

Floats = NDArray[np.float64]
DRAWS = 10_000


@dataclass(frozen=True)
class Gains:
    """One method of one run: values and gains over LOCAL ``(S, K)``, NaN where the metric is undefined."""

    run: str
    label: str
    value: Floats
    gain: Floats

    @property
    def by_client(self) -> Floats:
        """The mean gain of each client, ``(K,)``, clients without any left out."""
        there = np.isfinite(self.gain).any(0)
        return np.asarray(np.nanmean(self.gain[:, there], axis=0))

    @property
    def defined(self) -> Floats:
        """The gains of all clients and seeds that have one."""
        return self.gain[np.isfinite(self.gain)]


def read(run: OpenedRun) -> list[Gains]:
    """Every method of a run, LOCAL first."""
    alone, share = run.about.reference, metric_of(run.metric).is_share
    clients = list(next(iter(run.results.values())).values.index)
    found = []
    for system in run.systems:
        seeds = run.seeds(system)
        own, other = (
            np.array([run.results[*each, seed].values.reindex(clients).to_numpy() for seed in seeds], dtype=np.float64)
            for each in (system, alone)
        )
        gain = 100 * (own - other) if share else 100 * (other - own) / other
        found.append(Gains(run.about.name, run.about.label(system), own, gain))
    return found


def interval(values: Floats, statistic: str = "mean") -> tuple[float, float]:
    """The bootstrap interval of the mean of ``(n,)`` units."""
    drawn = np.random.default_rng(0).choice(values, size=(DRAWS, len(values)))
    low, high = np.quantile(drawn.mean(1), [0.025, 0.975])
    return float(low), float(high)


def by_client(run: OpenedRun) -> Iterator[str]:
    """A column a client; intervals over seeds."""
    names = list(next(iter(run.results.values())).values.index)
    yield f"| system | {' | '.join(names)} | all |"
    yield f"|---|{'---|' * (len(names) + 1)}"
    for each in read(run):
        if each.label == run.about.label(run.about.reference):
            cells = [f"{value:.3f}" for value in [*np.nanmean(each.value, axis=0), np.nanmean(each.value)]]
        else:
            columns = [each.gain[:, k] for k in range(len(names))] + [np.nanmean(each.gain, axis=1)]
            cells = [_gain(column[np.isfinite(column)]) for column in columns]
        yield f"| {each.label} | {' | '.join(cells)} |"


def by_method(run: OpenedRun) -> Iterator[str]:
    """A line a method; intervals over clients."""
    yield f"| system | {run.metric} | gain | PTR |"
    yield "|---|---|---|---|"
    for each in read(run):
        gain = "" if each.label == run.about.label(run.about.reference) else _gain(each.by_client)
        yield f"| {each.label} | {np.nanmean(each.value):.3f} | {gain} | {(each.defined >= 0).mean():.2f} |"


def guard(runs: list[OpenedRun]) -> Iterator[str]:
    """With and without the guard, beside always LOCAL and an oracle that knows the test results.

    *as LOCAL* is the share of clients and seeds that reach just what LOCAL does: mostly those that keep its model.
    """
    yield "| run | method | gain | p | guarded | oracle | loss | guarded | PTR | guarded | as LOCAL |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    totals = []
    for run in runs:
        found = {each.label: each for each in read(run)}
        for label, kept in found.items():
            if not label.endswith(" + guard"):
                continue
            free = found[label.removesuffix(" + guard")]
            p = wilcoxon(free.by_client).pvalue if np.any(free.by_client) else 1.0
            low, high = interval(_unharmed(kept))
            local = float((kept.defined == 0).mean())
            numbers = (free.defined.mean(), kept.defined.mean(), _loss(free), _loss(kept))
            totals.append((*numbers, p, np.maximum(free.defined, 0).mean()))
            yield (
                f"| {run.about.name} | {free.label} | {numbers[0]:+.2f} | {p:.3f} | {numbers[1]:+.2f} | "
                f"{totals[-1][5]:+.2f} | {numbers[2]:.2f} | {numbers[3]:.2f} | {(free.defined >= 0).mean():.2f} | "
                f"{(kept.defined >= 0).mean():.2f} [{low:.2f}, {high:.2f}] | {local:.2f} |"
            )
    gain, kept_gain, loss, kept_loss, p_values, oracle = np.array(totals).T
    sure = (p_values < 0.05) & (gain > 0)
    yield ""
    yield f"Mean loss {loss.mean():.2f} -> {kept_loss.mean():.2f}: {kept_loss.sum() / loss.sum():.0%} is left."
    others = loss < loss.max()
    if others.any():
        means = loss[others].mean(), kept_loss[others].mean()
        yield f"Without the pair that loses most {means[0]:.2f} -> {means[1]:.2f}: {means[1] / means[0]:.0%}."
    yield f"Mean gain {gain.mean():+.2f} -> {kept_gain.mean():+.2f}, always LOCAL 0, oracle {oracle.mean():+.2f}."
    if sure.any():
        yield (
            f"Where the gain is significant ({sure.sum()} of {len(sure)}): {gain[sure].mean():+.2f} -> "
            f"{kept_gain[sure].mean():+.2f}, {kept_gain[sure].sum() / gain[sure].sum():.0%} is kept; "
            f"there the loss is {loss[sure].mean():.2f} -> {kept_loss[sure].mean():.2f}."
        )


def _unharmed(each: Gains) -> Floats:
    """How often each client is no worse off than alone, ``(K,)``."""
    times = np.isfinite(each.gain).sum(0)
    return (each.gain >= 0).sum(0)[times > 0] / times[times > 0]


def _loss(each: Gains) -> float:
    """What clients lose, on average over all of them."""
    return float(np.maximum(0.0, -each.defined).mean())


def _gain(values: Floats) -> str:
    if len(values) < 2:
        return f"{values.mean():+.2f}" if len(values) else "undefined"
    low, high = interval(values)
    return f"{values.mean():+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--clients", action="store_true", help="a column a client")
    parser.add_argument("--guard", action="store_true", help="what the guard buys")
    chosen = parser.parse_args()
    opened = [open_run(path) for path in chosen.runs]
    if chosen.guard:
        print("\n".join(guard(opened)))
    else:
        for run in opened:
            print(f"\n{run.about.name}\n")
            print("\n".join(by_client(run) if chosen.clients else by_method(run)))
