"""Who learns from whom, small enough for a page: some rounds, and groups of clients where there are many."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from coterie.errors import CoterieError
from coterie.evaluation import System
from coterie.reports.opened import OpenedRun
from coterie.reports.page.packing import evenly, packed
from coterie.runs import system_folder
from coterie.runs.relations import read_relations

CELLS = 400_000
"""Numbers that are kept of the matrices of one system."""

MOST_ROUNDS = 25

MOST_ROWS = 100
"""A matrix of more clients is drawn in that many groups of neighbours in the order of clients, as means."""

ROUND = re.compile(r"round(\d+)\.npz")


def links_of(run: OpenedRun, system: System) -> dict[str, Any] | None:
    """The matrices of a system's first seed that has any; None where nothing was stored.

    ``clients`` are the names of rows and columns (a group is named by its first client), ``order`` puts those beside
    one another that take alike, ``joined`` says how many clients a group has, and ``matrices`` has, by name, an array
    ``(rounds, rows, rows)``.
    """
    for seed in run.about.seeds:
        folder = run.directory.relations / system_folder(*system) / f"seed{seed}"
        files = _by_round(folder)
        if files:
            return _read(files, seed)
    return None


def _by_round(folder: Path) -> dict[int, Path]:
    found = {int(match[1]): path for path in folder.glob("round*.npz") if (match := ROUND.fullmatch(path.name))}
    return dict(sorted(found.items()))


def _read(files: dict[int, Path], seed: int) -> dict[str, Any] | None:
    last = _stored(files[max(files)])
    if last is None:
        return None
    names = [str(name) for name in last.pop("clients")]
    joined = -(-len(names) // MOST_ROWS)
    rows = -(-len(names) // joined)
    rounds = evenly(np.array(list(files)), max(2, min(MOST_ROUNDS, CELLS // max(1, rows * rows * max(1, len(last))))))
    stacks: dict[str, list[NDArray[np.float32]]] = {name: [] for name in last}
    kept = []
    for number in rounds.tolist():
        stored = last if number == max(files) else _stored(files[number])
        if stored is None or not set(stacks) <= set(stored):
            continue
        kept.append(number)
        for name, stack in stacks.items():
            stack.append(_grouped(np.asarray(stored[name]), joined))
    if not kept or not stacks:
        return None
    return {
        "seed": seed,
        "clients": names[::joined],
        "joined": joined,
        "rounds": kept,
        "order": _order(next(iter(stacks.values()))[-1]),
        "matrices": {name: packed(np.stack(stack)) for name, stack in stacks.items()},
    }


def _stored(path: Path) -> dict[str, NDArray[Any]] | None:
    """One file; None where it is damaged, so that the others are still shown."""
    try:
        return dict(read_relations(path))
    except CoterieError:
        return None


def _grouped(matrix: NDArray[np.float32], joined: int) -> NDArray[np.float32]:
    """Means over blocks of ``joined`` neighbours; NaN, "not known", counts only where nothing in a block is known."""
    if joined == 1:
        return matrix.astype(np.float32)
    starts = np.arange(0, len(matrix), joined)
    known = np.isfinite(matrix)

    def blocks(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1))

    total, count = blocks(np.where(known, matrix, 0.0)), blocks(known.astype(np.float64))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _order(matrix: NDArray[np.float32]) -> list[int]:
    """Positions such that clients with large mutual entries are neighbours (average linkage)."""
    strength = np.nan_to_num(matrix.astype(np.float64))
    strength = (strength + strength.T) / 2
    if len(strength) < 3:
        return list(range(len(strength)))
    distance = strength.max() - strength
    np.fill_diagonal(distance, 0.0)
    return [int(i) for i in leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))]
