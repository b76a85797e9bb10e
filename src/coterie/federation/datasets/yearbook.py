"""Yearbook: portraits of American high-school pupils over a century (Ginosar et al. 2015), and who is a girl."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.images import class_folders, read_images
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

FOLDER = "faces_aligned_small_mirrored_co_aligned_cropped_cleaned"
CLASSES = ("M", "F")
FIRST_YEAR = 1930  # earlier years have too few portraits: Wild-Time and FEDORA begin here
SIDE = 32


@register_source(
    "yearbook",
    "37,189 portraits of 1930 to 2013 resized to 32 x 32 grey pixels, 2 classes; needs coterie[images]",
    f"yearbook/{FOLDER}/{{M,F}}/<year>_*.png, the unpacked archive of its authors",
)
def yearbook(data_dir: Path | None) -> Examples:
    """The portraits from 1930 on, ``(N, 1, 32, 32)`` uint8; class 0 is M and 1 is F, as in Wild-Time.

    Natural groups: ``year``, 84 of them.

    Raises:
        CoterieError: a folder is missing or empty, a file has no year in its name or is damaged; Pillow is missing.
    """
    expected = f"the folder {FOLDER} with the folders M and F of .png files"
    folder = find(data_dir, "yearbook", [f"yearbook/{FOLDER}", FOLDER, "yearbook/M"], expected)
    paths, labels = class_folders(folder.parent if folder.name == "M" else folder, CLASSES, "*.png")
    years = [_year(path) for path in paths]
    kept = [i for i, year in enumerate(years) if year >= FIRST_YEAR]
    if not kept:
        raise CoterieError(f"{folder} has no portrait of {FIRST_YEAR} or later: unpack the published archive again.")
    return Examples(
        "yearbook",
        torch.from_numpy(read_images([paths[i] for i in kept], (SIDE, SIDE), "L", resize=True)),
        torch.from_numpy(labels[kept]),
        classes=len(CLASSES),
        scale=1 / 255,
        groups={"year": [str(years[i]) for i in kept]},
    )


def _year(path: Path) -> int:
    """The year, with which file names begin."""
    found = re.match(r"(\d{4})_", path.name)
    if found is None:
        raise CoterieError(f"{path} does not begin with a year, as 1930_Ohio_Dayton_0-3.png does: rename or remove it.")
    return int(found[1])
