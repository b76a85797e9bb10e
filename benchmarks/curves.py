"""The curve on each method's page: accuracy by round beside LOCAL and FedAvg. Needs matplotlib.

coterie run tuned/digits -o runs/tuned-digits
python benchmarks/curves.py runs/tuned-digits docs/algorithms/curves
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pandas as pd

COLOURS = {"local": "#8a8a8a", "fedavg": "#d1495b"}


def main(run: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = json.loads((run / "summary.json").read_text())["rows"]
    table = pd.read_parquet(run / "history.parquet")
    table = table[(table.split == "test") & (table.metric == "accuracy") & (table.phase == "evaluate")]
    curves: dict[str, dict[str, pd.Series]] = {}
    for row in rows:
        own = table[(table.algorithm == row["algorithm"]) & (table.variant.fillna("") == (row["variant"] or ""))]
        mean = own.groupby("round").value.mean()
        curves.setdefault(row["algorithm"], {})[row["label"]] = mean
    matplotlib.rcParams["svg.hashsalt"] = "coterie"
    for name, own in curves.items():
        figure, axis = plt.subplots(figsize=(5.2, 2.6), layout="constrained")
        for other, colour in COLOURS.items():
            if other != name:
                (curve,) = curves[other].values()
                axis.plot(curve.index, curve, color=colour, linewidth=1.2, label=other)
        for (label, curve), style in zip(own.items(), ("-", "--", ":"), strict=False):
            axis.plot(curve.index, curve, style, color="#2a7f9e", linewidth=2, label=label)
        axis.set_xlabel("round")
        axis.set_ylabel("mean test accuracy")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
