"""Two classics of multi-task learning in Matlab files, where every cell is a group: schools and mine fields."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

PERCENT = (3, 4)  # columns of the schools that are percentages; the others are 0 or 1


@register_source(
    "school",
    "exam scores of 15,362 pupils of 139 London schools from 28 facts; regression",
    "school/school.mat or mtl-silos/school.mat, of MALSAR",
)
def school(data_dir: Path | None) -> Examples:
    """Facts ``(15362, 28)`` float32 from 0 to 1, and scores ``(15362, 1)`` from 1 to 70. Natural groups: ``school``.

    Raises:
        CoterieError: the file is missing or damaged, or its cells are of another shape.
    """
    path = find(data_dir, "school", ["school/school.mat", "mtl-silos/school.mat"], "the file school.mat of MALSAR")
    x, y, groups = read_cells(path, "X", "Y", 28, "school")
    x[:, PERCENT] /= 100
    return Examples(
        "school",
        torch.from_numpy(x).float(),
        torch.from_numpy(y).float()[:, None],
        classes=1,
        task="regression",
        groups={"school": groups},
    )


@register_source(
    "landmine",
    "mine or not of 14,820 radar echoes in 29 fields, 9 features, 2 classes of which one is rare",
    "landmine/LandmineData.mat or mtl-silos/LandmineData.mat",
)
def landmine(data_dir: Path | None) -> Examples:
    """Features ``(14820, 9)`` float32 as published; class 1, six in a hundred, is a mine. Natural groups: ``field``.

    Raises:
        CoterieError: the file is missing or damaged, its cells are of another shape, or a label is neither 0 nor 1.
    """
    places = ["landmine/LandmineData.mat", "mtl-silos/LandmineData.mat"]
    path = find(data_dir, "landmine", places, "the file LandmineData.mat of Xue et al. 2007")
    x, y, groups = read_cells(path, "feature", "label", 9, "field")
    if len(wrong := y[~np.isin(y, (0, 1))]):
        raise CoterieError(f"{path} holds the label {wrong[0]:g}, outside the classes 0 .. 1. Replace the file.")
    return Examples(
        "landmine",
        torch.from_numpy(x).float(),
        torch.from_numpy(y.astype(np.int64)),
        classes=2,
        groups={"field": groups},
    )


def read_cells(
    path: Path, inputs: str, targets: str, width: int, group: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
    """Join the cells of a Matlab file.

    Args:
        path: the file, of version 7 or older.
        inputs: name of the cells ``(n_i, width)``.
        targets: name of the cells ``(n_i, 1)``.
        width: number of columns.
        group: kind of group; the cells become ``<group>-001``, ``<group>-002`` and so on.

    Returns:
        Inputs ``(N, width)``, targets ``(N,)`` and the group of each row.

    Raises:
        CoterieError: the file is damaged, lacks a variable, or cells do not fit together.
    """
    from scipy.io import loadmat  # slow to import, and most runs read other data

    try:
        content = loadmat(path, variable_names=[inputs, targets])
    # whatever scipy runs into in a damaged file: it raises a dozen types
    except Exception as error:
        raise CoterieError(
            f"{path} is truncated, damaged or no Matlab file ({error}). Download or copy it again."
        ) from error
    for name in (inputs, targets):
        if not isinstance(content.get(name), np.ndarray) or content[name].dtype.kind != "O":
            raise CoterieError(f"{path} has no cells {name!r}. Replace it by the published file.")
    x, y = content[inputs].ravel().tolist(), content[targets].ravel().tolist()
    if len(x) != len(y):
        raise CoterieError(f"{path} has {len(x)} cells {inputs!r} but {len(y)} cells {targets!r}. Replace the file.")
    digits = len(str(len(x)))
    groups: list[str] = []
    for i, (of_inputs, of_targets) in enumerate(zip(x, y, strict=True), start=1):
        n = len(of_inputs)
        for name, cell, shape in ((inputs, of_inputs, (n, width)), (targets, of_targets, (n, 1))):
            if cell.shape != shape or not np.issubdtype(cell.dtype, np.number):
                raise CoterieError(
                    f"{path}: cell {i} of {name!r} is {cell.dtype} {cell.shape} where numbers {shape} are expected. "
                    "Replace it by the published file."
                )
        groups += [f"{group}-{i:0{digits}d}"] * n
    return np.concatenate(x).astype(np.float64), np.concatenate(y).astype(np.float64)[:, 0], groups
