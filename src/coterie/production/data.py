"""Data to predict from: tables, archives of arrays, folders of pictures, checked against what the model takes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.datasets.images import read_images
from coterie.federation.datasets.own_npz import read_client
from coterie.federation.frames import read_frame
from coterie.federation.raw_table import TABLES, is_table, numbering, raw_columns
from coterie.production.preprocessing import Preprocessing

if TYPE_CHECKING:
    import pandas as pd

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
FEW = 5
"""So many columns are named."""


@dataclass(frozen=True)
class Batch:
    """Inputs ``(n, *raw shape)``, and a column that says which row of the answer is which: a number or a file."""

    inputs: Tensor
    name: str
    rows: Sequence[int | str]


def read(data: Any, preprocessing: Preprocessing) -> Batch:
    """Inputs from a file, a folder, a data frame or an array.

    Raises
    ------
    CoterieError
        They are not what the model takes: one sentence for each difference, on lines of their own.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return _numbered(_of_table(data.reset_index(drop=True), preprocessing, "the table", "row", 1))
    if not isinstance(data, str | Path):
        return _numbered(_of_array(np.asarray(data), preprocessing, "the array"))
    path = Path(data)
    if path.is_dir():
        return _of_pictures(path, preprocessing)
    if is_table(path):
        return _numbered(_of_table(read_frame(path), preprocessing, str(path), *numbering(path)))
    if path.suffix.lower() == ".npz":
        return _numbered(_of_array(_archive(path), preprocessing, str(path)))
    raise CoterieError(
        f"{path} is none of what can be predicted from: {', '.join(TABLES)}, .npz or a folder of pictures."
    )


def _numbered(inputs: Tensor) -> Batch:
    return Batch(inputs, "row", range(1, len(inputs) + 1))


def _of_table(table: pd.DataFrame, preprocessing: Preprocessing, where: str, unit: str, first: int) -> Tensor:
    features = preprocessing.features
    if features is None:
        shape = preprocessing.shape
        raise CoterieError(
            f"{where} is a table, but the model of {preprocessing.client} takes arrays of shape {shape}."
        )
    return torch.from_numpy(raw_columns(table, features, where, unit, first))


def _archive(path: Path) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            if "x" not in names and len(names) != 1:
                raise CoterieError(f"{path} holds no array 'x', only {', '.join(names) or 'nothing'}.")
            name = "x" if "x" in names else names[0]
            try:
                return np.asarray(archive[name])
            except ValueError:
                if name != "data":
                    raise
                return read_client(path).inputs.numpy()  # PFLlib's dictionary, read without running anything
    except FileNotFoundError as error:
        raise CoterieError(f"There is no archive {path}.") from error
    # np.load takes what is no archive for a single array or a pickle
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise CoterieError(f"{path} is damaged or no archive of plain arrays: pickles are not read.") from error


def _of_array(values: NDArray[Any], preprocessing: Preprocessing, where: str) -> Tensor:
    if preprocessing.features is not None:
        names = ", ".join(feature.name for feature in preprocessing.features[:FEW])
        raise CoterieError(f"{where}: the model of {preprocessing.client} takes a table with columns {names}, ...")
    if values.shape[1:] != preprocessing.shape or values.ndim == 0:
        raise CoterieError(f"{where} has the shape {values.shape} where (n, {_shape(preprocessing)}) is expected.")
    if values.dtype.kind not in "biuf":
        raise CoterieError(f"{where} holds {values.dtype} where numbers are expected.")
    if preprocessing.codes is not None:
        _check_codes(values, preprocessing.codes, where)
    if preprocessing.dtype == "uint8":
        if values.dtype.kind == "f" or (values.size and (values.min() < 0 or values.max() > 255)):
            raise CoterieError(
                f"{where} holds {values.dtype} values where bytes 0 to 255 are expected, as in training."
            )
        return torch.from_numpy(values.astype(np.uint8))
    flat = values.reshape(len(values), -1)
    if not (good := np.isfinite(flat).all(axis=1)).all():
        raise CoterieError(f"{where}: row {int((~good).argmax()) + 1} holds NaN or infinity: clean or remove it.")
    return torch.from_numpy(values.astype(preprocessing.dtype))


def _check_codes(values: NDArray[Any], codes: int, where: str) -> None:
    wrong = ~((values >= 0) & (values < codes) & (values == np.floor(values)))  # so is NaN
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise CoterieError(
            f"{where}: row {place[0] + 1} holds {float(values[place]):g} where codes 0 to {codes - 1} are "
            "expected, as in training."
        )


def _of_pictures(folder: Path, preprocessing: Preprocessing) -> Batch:
    shape = preprocessing.shape
    if preprocessing.dtype != "uint8" or len(shape) != 3 or shape[0] not in (1, 3):
        raise CoterieError(
            f"{folder} is a folder, but the model of {preprocessing.client} takes no pictures: it takes "
            f"{preprocessing.dtype} of shape ({_shape(preprocessing)})."
        )
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if not paths:
        raise CoterieError(f"{folder} holds no pictures ({', '.join(sorted(PICTURES))}).")
    pixels = read_images(paths, (shape[1], shape[2]), "L" if shape[0] == 1 else "RGB", resize=True)
    return Batch(torch.from_numpy(pixels), "file", [path.relative_to(folder).as_posix() for path in paths])


def _shape(preprocessing: Preprocessing) -> str:
    return ", ".join(map(str, preprocessing.shape))
