"""The README's picture: what each client of a run gained over training alone. Needs matplotlib.

coterie run -o runs/quickstart-1
python benchmarks/quickstart_picture.py runs/quickstart-1 docs/quickstart.png
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd


def main(run: Path, picture: Path) -> None:
    rows = json.loads((run / "summary.json").read_text())["rows"]
    table = pd.read_parquet(run / "clients.parquet")
    table = table[(table.split == "test") & (table.metric == "accuracy") & (table.phase == "evaluate")]
    results = {}
    for row in rows:
        own = table[(table.algorithm == row["algorithm"]) & (table.variant.fillna("") == (row["variant"] or ""))]
        parts = [
            own[(own.seed == seed) & (own["round"] == chosen)].set_index(["seed", "client"]).value
            for seed, chosen in zip(row["seeds"], row["chosen_rounds"], strict=True)
        ]
        results[row["label"]] = pd.concat(parts)
    alone = results.pop(next(row["label"] for row in rows if row["reference"]))
    figure, axes = plt.subplots(1, len(results), figsize=(10, 3), sharey=True, layout="constrained")
    for axis, (label, accuracy) in zip(axes, results.items(), strict=True):
        gain = (100 * (accuracy - alone)).sort_values().to_numpy()
        axis.bar(range(len(gain)), gain, width=1.0, color=["#2a7f9e" if g >= 0 else "#d1495b" for g in gain])
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(f"{label}: {int((gain < 0).sum())} of {len(gain)} worse off", fontsize=10)
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes[0].set_ylabel("gain over training alone\n(points of accuracy)")
    figure.supxlabel("clients of three seeds, sorted", fontsize=9)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
