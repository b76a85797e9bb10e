"""Does FedDWA find planted groups? The weight inside the own group, by round, of a finished run.

coterie run feddwa/planted-groups -o runs/groups
python benchmarks/feddwa_groups.py runs/groups
"""

import sys
from pathlib import Path

import numpy as np
import yaml

from coterie import load_config
from coterie.federation import build_federation


def groups_of(run: Path, seed: int) -> dict[str, int]:
    """The group of each client; the run directory does not hold it, but dividing anew gives it."""
    federation = build_federation(load_config(run / "config.yaml").federation, seed=seed)
    return dict(zip(federation.names, federation.source["clients"]["group"], strict=True))


def shares(weights: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """Of the weight that clients give to others, the part inside the own group; and the mean self-weight."""
    others = np.where(np.eye(len(weights), dtype=bool), 0.0, weights)
    inside = others[group[:, None] == group[None, :]].sum()
    return float(inside / others.sum()), float(weights.diagonal().mean())


def main(run: Path) -> None:
    seeds = yaml.safe_load((run / "config.yaml").read_text())["seeds"]
    print(f"{'method':<16}{'seed':>5}{'round':>7}{'inside own group':>18}{'mean self-weight':>18}")
    for seed in seeds:
        group_of = groups_of(run, seed)
        for path in sorted((run / "relations").glob(f"feddwa*/seed{seed}/round*.npz")):
            with np.load(path) as stored:
                (name,) = set(stored.files) - {"clients"}
                weights, group = stored[name].astype(float), np.array([group_of[c] for c in stored["clients"]])
            inside, own = shares(weights, group)
            print(f"{path.parts[-3]:<16}{seed:>5}{int(path.stem[5:]):>7}{inside:>18.3f}{own:>18.3f}")
    _, sizes = np.unique(group, return_counts=True)
    by_chance = ((sizes - 1) * sizes).sum() / (len(group) * (len(group) - 1))
    print(f"by chance, weight on others would lie inside the own group with a share of {by_chance:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
