"""The table of tuned settings: what the same small grid chose for each method, by validation data alone.

coterie tune benchmarks/tuned/digits.yaml -o runs/digits
coterie tune benchmarks/tuned/rotated-mnist.yaml -o runs/rotated-mnist
coterie tune benchmarks/tuned/cifar10.yaml -o runs/cifar10
python benchmarks/tuned_table.py runs/digits runs/rotated-mnist runs/cifar10
"""

import sys
from pathlib import Path

import pandas as pd

RESULTS = {"method", "trial", "validation_accuracy", "std", "rounds", "seconds", "failed"}


def best(trials: pd.DataFrame) -> dict[str, tuple[str, float, float, int, int]]:
    """By method: the best setting, its validation accuracy, the worst's, how many were tried and how many failed."""
    found = {}
    for method, rows in trials.groupby("method", sort=False):
        good = rows[rows.validation_accuracy.notna()]
        if good.empty:
            found[method] = ("none trained", float("nan"), float("nan"), len(rows), len(rows))
            continue
        top = good.loc[good.validation_accuracy.idxmax()]
        setting = ", ".join(
            f"{key.removeprefix('training.')} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in top.items()
            if key not in RESULTS and not pd.isna(value) and value not in ("", "nan")
        )
        worst = float(good.validation_accuracy.min())
        found[method] = (setting, float(top.validation_accuracy), worst, len(rows), len(rows) - len(good))
    return found


def main(runs: list[Path]) -> None:
    columns = [best(pd.read_parquet(run / "trials.parquet")) for run in runs]
    print("| method |" + "|".join(f" {run.name} | accuracy " for run in runs) + "|")
    print("|---|" + "---|---|" * len(runs))
    for method in columns[0]:
        cells = [f"`{method}`"]
        for column in columns:
            setting, top, worst, _, failed = column.get(method, ("-", float("nan"), float("nan"), 0, 0))
            cells += [setting + (f" ({failed} failed)" if failed else ""), f"{top:.3f} ({worst:.3f})"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main([Path(run) for run in sys.argv[1:]])
