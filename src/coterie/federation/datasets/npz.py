"""Archives of numpy arrays, ``.npz``, also compressed once more as ``.npz.xz``."""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError

Shape = tuple[int | None, ...]

ENDINGS = (".npz", ".npz.xz")


def read_npz(path: Path, expected: Mapping[str, Shape]) -> dict[str, NDArray[np.generic]]:
    """Read some arrays of one archive; objects in it are refused, since reading them could run code.

    Args:
        path: the archive; compressed once more where its name ends in ``.xz``.
        expected: names and shapes; ``None`` stands for any length.

    Raises:
        CoterieError: the file is truncated or damaged, or an array is missing or of another shape.
    """
    try:
        raw = path.read_bytes()
        with np.load(io.BytesIO(lzma.decompress(raw) if path.suffix == ".xz" else raw), allow_pickle=False) as archive:
            if missing := [name for name in expected if name not in archive.files]:
                raise CoterieError(
                    f"{path} holds no array {missing[0]!r}, only {', '.join(sorted(archive.files)) or 'nothing'}: "
                    f"it should hold {', '.join(expected)}. Replace it by the published file."
                )
            arrays = {name: np.asarray(archive[name]) for name in expected}
    # np.load takes what is no archive for a single array or a pickle
    except (OSError, EOFError, ValueError, AttributeError, lzma.LZMAError, zipfile.BadZipFile, zlib.error) as error:
        raise CoterieError(
            f"{path} is truncated, damaged or no archive of plain arrays ({error}). Download or copy it again."
        ) from error
    for name, shape in expected.items():
        found = arrays[name].shape
        if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
            wanted = ", ".join("N" if n is None else str(n) for n in shape)
            raise CoterieError(
                f"{path}: the array {name!r} has the shape {found} where ({wanted}) is expected. Replace it by the "
                "published file."
            )
    return arrays


def class_labels(values: NDArray[np.generic], count: int, classes: int, where: str) -> NDArray[np.int64]:
    """Labels as ``(N,)`` int64, checked.

    Args:
        values: ``(N,)`` or ``(N, 1)`` whole numbers.
        count: how many there should be.
        classes: number of classes C; labels are ``0 .. C - 1``.
        where: file and array, for messages.

    Raises:
        CoterieError: no whole numbers, too many or too few, or outside the classes.
    """
    if not np.issubdtype(values.dtype, np.integer):
        raise CoterieError(f"{where} are {values.dtype} where whole numbers are expected. Replace the file.")
    labels = values.reshape(-1).astype(np.int64)
    if len(labels) != count:
        raise CoterieError(f"{where} are {len(labels):,} for {count:,} examples: they do not belong together.")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise CoterieError(
            f"{where} hold the label {wrong[0]}, outside the classes 0 .. {classes - 1}. Replace the file by the "
            "published one."
        )
    return labels
