"""A run directory written by hand, as a run leaves it at a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.runs import About, History, Record, RunDirectory

NAMES = ("north", "<script>alert(1)</script>", "south")
N = (10, 20, 30)
ROUNDS, EVERY = 4, 2
SYSTEMS = {("local", ""): "LOCAL", ("fedora", "released"): "FEDORA <b>"}


def values(algorithm: str, seed: int, round: int) -> np.ndarray:
    """Test accuracies, different everywhere, ``(3,)``."""
    return np.random.default_rng((len(algorithm), seed, round)).random(3)


def add_round(history: History, algorithm: str, variant: str, seed: int, round: int) -> None:
    key = (algorithm, variant, seed, round)
    history.add_timing(*key, "train", 1.0 + round)
    if round % EVERY == 0:
        history.add_timing(*key, "evaluate", 0.5)
        history.add_clients(*key, "test", NAMES, N, "accuracy", values(algorithm, seed, round))


def written(
    folder: Path, reached: dict[tuple[str, str, int], int], *, seeds: tuple[int, ...] = (0, 1), finished: bool = False
) -> RunDirectory:
    """A run whose systems have ``reached`` so many rounds; with ``finished``, each that has come to the last is over."""
    run = RunDirectory.create(folder, "x")
    About("digits", "classification", "last", ROUNDS, seeds, (), SYSTEMS, ("local", "")).write(run)
    history = History()
    record = Record(run.checkpoints / "progress.json", recipe={"rounds": ROUNDS})
    for (algorithm, variant, seed), last in reached.items():
        for round in range(last + 1):
            add_round(history, algorithm, variant, seed, round)
        if finished and last == ROUNDS:
            record.finished.append((algorithm, variant, seed))
    history.write(run)
    record.write()
    return run
