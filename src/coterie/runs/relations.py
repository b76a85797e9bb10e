"""Who learns from whom, on disk: one compressed numpy file a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.runs.atomic import atomic_path
from coterie.runs.directory import RunDirectory, make_folder, system_folder


def save_relations(
    run: RunDirectory,
    algorithm: str,
    variant: str | None,
    seed: int,
    round: int,
    names: Sequence[str],
    matrices: Mapping[str, NDArray[np.float32]],
) -> None:
    """Write the matrices ``(K, K)`` of one round; row i says what client i takes, column j from whom.

    Raises
    ------
    CoterieError
        The file cannot be written.
    """
    folder = make_folder(run.relations / system_folder(algorithm, variant) / f"seed{seed}")
    with atomic_path(folder / f"round{round:05d}.npz") as temporary, open(temporary, "wb") as file:
        arrays: dict[str, Any] = {"clients": np.array(names), **matrices}
        np.savez_compressed(file, **arrays)


def load_relations(
    run: RunDirectory, algorithm: str, variant: str | None, seed: int
) -> dict[int, dict[str, NDArray[np.float32]]]:
    """All stored matrices of one run, by round and name; ``clients`` holds the names of rows and columns.

    Raises
    ------
    CoterieError
        A file is damaged.
    """
    folder = run.relations / system_folder(algorithm, variant) / f"seed{seed}"
    return {int(path.stem.removeprefix("round")): read_relations(path) for path in sorted(folder.glob("round*.npz"))}


def read_relations(path: Path) -> dict[str, NDArray[np.float32]]:
    """The matrices of one file by name, and the names ``clients``; raises CoterieError when it is damaged."""
    try:
        with np.load(path) as content:
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError) as error:
        raise CoterieError(f"{path} is damaged ({error}): run this system again to write it anew.") from error
