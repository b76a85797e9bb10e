"""Losses of single validation examples, on disk: one compressed numpy file a run."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.errors import CoterieError
from coterie.runs.atomic import atomic_path
from coterie.runs.directory import RunDirectory, make_folder, system_folder


@dataclass(frozen=True)
class Losses:
    """What the reported models of a run lose on each validation example.

    Attributes
    ----------
    names : tuple of str
        The K clients.
    owner : ndarray (n,)
        Whose example each is, 0 .. K - 1.
    values : mapping
        Losses ``(n,)`` by name.
    """

    names: tuple[str, ...]
    owner: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float64]]


def save_losses(
    run: RunDirectory,
    algorithm: str,
    variant: str | None,
    seed: int,
    names: Sequence[str],
    n: ArrayLike,
    losses: Mapping[str, NDArray[np.float64]],
) -> None:
    """Write the losses ``(sum of n,)`` of the K clients, ``n: (K,)`` examples of each one after the other.

    Raises
    ------
    CoterieError
        The file cannot be written.
    """
    path = _file(run, algorithm, variant, seed)
    make_folder(path.parent)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        arrays: dict[str, Any] = {f"loss:{name}": values for name, values in losses.items()}
        np.savez_compressed(file, clients=np.array(names), n=np.asarray(n), **arrays)


def has_losses(run: RunDirectory, algorithm: str, variant: str | None, seed: int) -> bool:
    """Whether the losses of a run were kept."""
    return _file(run, algorithm, variant, seed).exists()


def load_losses(run: RunDirectory, algorithm: str, variant: str | None, seed: int) -> Losses:
    """Read what `save_losses` wrote.

    Raises
    ------
    CoterieError
        The file is missing or damaged.
    """
    path = _file(run, algorithm, variant, seed)
    try:
        with np.load(path) as content:
            n = content["n"].astype(np.int64)
            values = {name.removeprefix("loss:"): content[name] for name in content.files if name.startswith("loss:")}
            return Losses(tuple(map(str, content["clients"])), np.repeat(np.arange(len(n)), n), values)
    except FileNotFoundError as error:
        raise CoterieError(f"There are no losses {path}: the run keeps them with save_losses.") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CoterieError(f"{path} is damaged ({error}): run this system again to write it anew.") from error


def _file(run: RunDirectory, algorithm: str, variant: str | None, seed: int) -> Path:
    return run.losses / system_folder(algorithm, variant) / f"seed{seed}.npz"
