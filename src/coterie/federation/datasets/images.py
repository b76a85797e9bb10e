"""Pictures in files of their own: decoding, and the layout of one folder a class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.datasets.files import contents

if TYPE_CHECKING:
    from PIL.Image import Image

Mode = Literal["RGB", "L"]
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


def read_images(
    paths: Sequence[Path], size: tuple[int, int], mode: Mode = "RGB", resize: bool = False
) -> NDArray[np.uint8]:
    """Decode pictures.

    Args:
        paths: N files of any format that Pillow reads.
        size: height and width.
        mode: ``RGB`` for three channels or ``L`` for grey levels.
        resize: bring pictures of other sizes to ``size`` (bilinear); otherwise they are errors.

    Returns:
        ``(N, channels, height, width)`` uint8.

    Raises:
        CoterieError: Pillow is missing, or a file is damaged, of another size, or has more than 8 bits a level; the
            message names it.
    """
    height, width = size
    pixels = np.empty((len(paths), len(mode), height, width), dtype=np.uint8)
    for i, path in enumerate(paths):
        image = _decode(path, mode)
        if image.size != (width, height):
            if not resize:
                raise CoterieError(
                    f"{path} has {image.height} x {image.width} pixels where {height} x {width} are expected. Replace "
                    "it by the published file."
                )
            image = image.resize((width, height), resample=_pillow().Resampling.BILINEAR)
        pixels[i] = np.asarray(image).reshape(height, width, len(mode)).transpose(2, 0, 1)
    return pixels


def class_folders(folder: Path, classes: Sequence[str] | int, pattern: str) -> tuple[list[Path], NDArray[np.int64]]:
    """The files of a folder that has one folder a class, class after class, each in the order of file names.

    Args:
        folder: the folder that holds them.
        classes: the names of the folders in the order of their labels, or how many there are, in alphabetical order.
        pattern: which files of a class folder, such as ``*.png``.

    Returns:
        N paths, and their labels ``(N,)``.

    Raises:
        CoterieError: a class folder is missing, too many, or has no such file.
    """
    found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    names = found if isinstance(classes, int) else classes
    count = classes if isinstance(classes, int) else len(classes)
    if len(found) != count or set(found) != set(names):
        raise CoterieError(
            f"{folder} should hold one folder for each of {count} classes, but {contents(folder)} ({len(found)} "
            "folders in all): unpack the published archive again."
        )
    paths: list[Path] = []
    counts = []
    for name in names:
        of_class = sorted((folder / name).glob(pattern))
        if not of_class:
            raise CoterieError(
                f"{folder / name} has no picture {pattern}, but {contents(folder / name)}: unpack the published "
                "archive again."
            )
        paths += of_class
        counts.append(len(of_class))
    return paths, np.repeat(np.arange(count, dtype=np.int64), counts)


def _decode(path: Path, mode: Mode) -> Image:
    try:
        with _pillow().open(path) as image:
            if image.mode[0] not in "IF":
                converted: Image = image.convert(mode)
                return converted
    except FileNotFoundError as error:
        raise CoterieError(f"{path} is missing: unpack the published archive again.") from error
    # Pillow reports damaged files as any of these
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise CoterieError(
            f"{path} is no picture or damaged ({error}): put a sound one in its place, or remove it."
        ) from error
    # Pillow would cut all that 8 bits cannot hold to white, and which range is meant only its owner knows
    raise CoterieError(f"{path} has more than 8 bits a grey level: bring its levels to 0 to 255, and save it with 8.")


def _pillow() -> ModuleType:
    """The module that decodes pictures, imported late since it is optional."""
    try:
        from PIL import Image
    except ImportError as error:
        raise CoterieError(
            "Pictures are decoded by Pillow, which is not installed: install it with pip install 'coterie[images]'."
        ) from error
    return Image
