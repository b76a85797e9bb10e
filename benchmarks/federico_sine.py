"""FedeRiCo's sine toy in numbers: what every client gains over training alone, and whom it listens to.

coterie run federico/sine -o runs/sine
python benchmarks/federico_sine.py runs/sine
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coterie.runs import RunDirectory, load_relations

DISTANCES = ("self", "1 apart", "2 apart", "further")


def main(path: Path) -> None:
    run = RunDirectory.open(path)
    rows = json.loads((path / "summary.json").read_text())["rows"]
    table = pd.read_parquet(path / "clients.parquet")
    table = table[(table.split == "test") & (table.metric == "mae") & (table.phase == "evaluate")]
    errors = {row["label"]: errors_of(row, table) for row in rows}
    alone = errors[next(row["label"] for row in rows if row["reference"])]
    width = max(map(len, errors))

    print("gain over LOCAL in MAE, every client of every seed")
    print(f"{'system':{width}}     MAE      min     mean      max  harmed  harmed on average over seeds")
    for label, error in errors.items():
        gain = alone - error  # (seeds, clients)
        print(
            f"{label:{width}}  {error.to_numpy().mean():.4f}"
            + "".join(f"  {value:+.4f}" for value in (gain.min().min(), gain.to_numpy().mean(), gain.max().max()))
            + f"  {int((gain < 0).sum().sum()):2d}/{gain.size}  {int((gain.mean() < 0).sum())}/{gain.shape[1]}"
        )

    print("\nmean weight of a model by distance on the curve, last evaluated round")
    print(f"{'':{width}}" + "".join(f"{name:>9}" for name in DISTANCES))
    for row in rows:
        stored = [load_relations(run, row["algorithm"], row["variant"], seed) for seed in row["seeds"]]
        last = [rounds[max(rounds)] for rounds in stored if rounds]
        if last and "w" in last[0]:
            by_distance = np.mean([weight_by_distance(relation["w"], relation["clients"]) for relation in last], axis=0)
            print(f"{row['label']:{width}}" + "".join(f"{value:9.3f}" for value in by_distance))


def errors_of(row: dict[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """Test MAE at the reported rounds, seeds by clients."""
    own = table[(table.algorithm == row["algorithm"]) & (table.variant.fillna("") == (row["variant"] or ""))]
    chosen = pd.DataFrame({"seed": row["seeds"], "round": row["chosen_rounds"]})
    return own.merge(chosen).pivot_table(index="seed", columns="client", values="value")


def weight_by_distance(w: NDArray[Any], clients: NDArray[Any]) -> list[float]:
    """Mean of ``w: (K, K)`` over pairs of clients 0, 1, 2 and more intervals apart; names end in the interval."""
    position = np.array([int(str(name).rpartition("-")[2]) for name in clients])
    distance = np.abs(position[:, None] - position)
    return [float(w[distance == apart].mean()) for apart in (0, 1, 2)] + [float(w[distance > 2].mean())]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
