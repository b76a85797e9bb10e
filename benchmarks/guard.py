"""Which rule a guard should have: harm avoided and gain kept by candidates, beside the choice of an oracle.

    python -m benchmarks.guard --output runs/guard-development

It compares candidate rules on data sets that serve for nothing else (digits, synthetic data); the rule of
`coterie.evaluation.guard` and its defaults were fixed with it. ``benchmarks/examples_table.py`` has what it buys
elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import norm

from coterie import Experiment, load_config, resume
from coterie.evaluation import evidence, judge, reported
from coterie.evaluation.guard import Evidence
from coterie.reports import open_run
from coterie.runs import RunDirectory, load_losses

COMMON: dict[str, Any] = {
    "algorithms": ["local", "fedavg", "fedavg-ft", "ditto", "fedora", "feddwa"],
    "seeds": [0, 1, 2, 3, 4],
    "evaluate_every": 2,
    "save_losses": True,
    "save_relations": "none",
    "save_server": False,
    "page": False,
    "guard": {"folds": 5},
}
MLP = {"model": {"name": "mlp", "hidden": [32]}, "training": {"epochs": 2, "batch_size": 20, "lr": 0.1}, "rounds": 30}
DEVELOPMENT: dict[str, dict[str, Any]] = {
    "digits-rotated": {"federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 12},
                                      "train": 70, "validation": 20, "test": 50}, **MLP},
    "digits-dirichlet": {"federation": {"source": "digits", "partition": {"rule": "dirichlet", "clients": 20,
                                                                         "alpha": 0.3}, "test": 0.4}, **MLP},
    "digits-few": {"federation": {"source": "digits", "partition": {"rule": "dirichlet", "clients": 40,
                                                                   "alpha": 1.0}, "test": 0.5}, **MLP},
    "synthetic": {"federation": {"source": "synthetic", "clients": 20, "examples": 80,
                                 "partition": {"rule": "natural"}, "test": 0.4},
                  "model": "linear", "training": {"epochs": 2, "batch_size": 20, "lr": 0.05}, "rounds": 30},
    "synthetic-iid": {"federation": {"source": "synthetic", "clients": 20, "examples": 80, "iid": True,
                                     "partition": {"rule": "natural"}, "test": 0.4},
                      "model": "linear", "training": {"epochs": 2, "batch_size": 20, "lr": 0.05}, "rounds": 30},
}  # fmt: skip
Floats = NDArray[np.float64]


def gains(own: pd.Series[float], alone: pd.Series[float], metric: str) -> Floats:
    """Percentage points of a share, or per cent of LOCAL's error saved, ``(K,)``."""
    other = alone.loc[own.index]
    return np.asarray(100 * (own - other) if metric == "accuracy" else 100 * (other - own) / other, dtype=np.float64)


def loss(gain: Floats) -> float:
    """What clients lose, on average over all of them."""
    return float(np.maximum(0.0, -gain).mean())


def candidates(place: RunDirectory) -> Iterator[tuple[str, str, Floats, NDArray[np.bool_]]]:
    """By system and rule: gains of all clients and seeds, and whether they keep the personalised model."""
    run = open_run(place.path)
    results = reported(run.tables.clients, "accuracy", "best_val")
    config = load_config(place.config)
    folds = [RunDirectory(place.guard_fold(i)) for i in range(config.guard.folds if config.guard else 0)]
    systems = [entry.name for entry in config.algorithms if entry.name != "local"]
    variants = {key[0]: key[1] for key in results if "guard" not in key[1]}
    for system in systems:
        found: dict[str, list[tuple[Floats, NDArray[np.bool_]]]] = {}
        for seed in config.seeds:
            own, alone = results[system, variants[system], seed], results["local", "", seed]
            gain = gains(own.values, alone.values, "accuracy")
            for scheme, places in (("folds", folds), ("one split", [place]), ("both", [*folds, place])):
                both = [(load_losses(p, "local", "", seed), load_losses(p, system, variants[system], seed))
                        for p in places]  # fmt: skip
                owner = np.concatenate([pair[0].owner for pair in both])
                for name in both[0][0].values:
                    a, b = (np.concatenate([pair[side].values[name] for pair in both]) for side in (0, 1))
                    for rule, keep in rules(evidence(a, b, owner, len(gain))):
                        found.setdefault(f"{scheme}, {name}, {rule}", []).append((gain, keep))
        for rule, parts in found.items():
            yield system, rule, np.concatenate([g for g, _ in parts]), np.concatenate([k for _, k in parts])


def rules(found: Evidence) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Candidates: every client by itself, or all together as in an empirical Bayes estimate."""
    for confidence in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        z = np.nan_to_num(found.difference / np.sqrt(found.variance), nan=-np.inf)
        yield f"alone, {confidence:g}", (z > 0) & (norm.cdf(z) >= confidence)
        yield f"together, {confidence:g}", judge(found, confidence).keep


def develop(output: Path, console: Console) -> None:
    """Train the development experiments and print how the candidates fare, averaged over methods and data sets."""
    rows = []
    for name, tree in DEVELOPMENT.items():
        folder = output / name
        if folder.exists():
            resume(folder)
        else:
            Experiment(load_config({"name": name, **COMMON, **tree})).run(output=folder, console=console)
        for system, rule, gain, keep in candidates(RunDirectory.open(folder)):
            kept = np.where(keep, gain, 0.0)
            best = np.maximum(gain, 0.0).mean()
            means = (gain.mean(), kept.mean(), loss(gain), loss(kept), (kept >= 0).mean(), best)
            rows.append((name, system, rule, *means))
    table = pd.DataFrame(rows, columns=["data", "system", "rule", "gain", "kept", "loss", "left", "ptr", "oracle"])
    table.to_csv(output / "candidates.csv", index=False)
    console.print(judged(table).to_string())


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """By rule, what clients gain and lose, and PTR: means over methods and data; beside fixed choices and an oracle."""
    found = table.groupby("rule")[["kept", "left", "ptr"]].mean().sort_values("kept", ascending=False)
    once = table.groupby(["data", "system"])[["gain", "loss", "oracle"]].first().mean()
    found.loc["always the personalised model"] = [once["gain"], once["loss"], np.nan]
    found.loc["always LOCAL"] = [0.0, 0.0, 1.0]
    found.loc["the oracle, which knows the test results"] = [once["oracle"], 0.0, 1.0]
    return found.rename(columns={"kept": "gain", "left": "loss"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/guard-development"))
    develop(parser.parse_args().output, Console(width=160))
