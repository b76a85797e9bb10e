"""GTSRB, German traffic signs: the official training pictures, or a reduced archive of 5,000."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.images import class_folders, read_images
from coterie.federation.datasets.npz import ENDINGS, class_labels, read_npz
from coterie.federation.datasets.registry import Options, register_source
from coterie.federation.examples import Examples

SIDE = 32
CLASSES = [f"{c:05d}" for c in range(43)]
OFFICIAL = "GTSRB/Final_Training/Images"
REDUCED = "gtsrb_32x32_5000"


class Gtsrb(Options):
    """Options of the source ``gtsrb``."""

    keep_together: Literal["nothing", "tracks"] = Field(
        "nothing", description="what goes to one split as a whole; tracks: no sign is both trained and tested on"
    )


@register_source(
    "gtsrb",
    "German traffic signs resized to 32 x 32 pixels, 43 classes: 39,209 (needs coterie[images]) or 5,000",
    f"gtsrb/{OFFICIAL}/<class>/*.ppm with GT-<class>.csv, else gtsrb/{REDUCED}.npz (or .npz.xz)",
    options=Gtsrb,
)
def gtsrb(data_dir: Path | None, options: Gtsrb) -> Examples:
    """The official training pictures where they are, else the reduced archive; ``(N, 3, 32, 32)`` uint8.

    Natural groups: ``track``. The up to 30 pictures of a track show one sign from a car that approaches it, so they
    are near copies of each other; papers divide them at random, ``keep_together: tracks`` does not. No official test
    set: its pictures belong to no track that is known.

    Raises:
        CoterieError: missing or damaged files; Pillow is missing.
    """
    places = [f"gtsrb/{OFFICIAL}", OFFICIAL, *(f"gtsrb/{REDUCED}{ending}" for ending in ENDINGS)]
    expected = f"the folder {OFFICIAL} with 43 folders of .ppm pictures, or the archive {REDUCED}.npz.xz"
    place = find(data_dir, "gtsrb", places, expected)
    examples = _official(place) if place.is_dir() else _reduced(place)
    return replace(examples, blocks=examples.groups["track"]) if options.keep_together == "tracks" else examples


def _official(folder: Path) -> Examples:
    paths, labels = class_folders(folder, CLASSES, "*.ppm")
    _check(folder, paths, labels.tolist())
    # a name such as 00012_00029.ppm is the 30th picture of track 12 of its class
    tracks = [path.name.partition("_")[0] for path in paths]
    return _examples(read_images(paths, (SIDE, SIDE), resize=True), labels, tracks)


def _check(folder: Path, paths: list[Path], labels: list[int]) -> None:
    """Compare the pictures with the tables of their classes, ``GT-00012.csv``: same names, same class."""
    listed: dict[Path, str] = {}
    for name in CLASSES:
        table = folder / name / f"GT-{name}.csv"
        if not table.is_file():
            raise CoterieError(f"{table} is missing: unpack the published archive again.")
        with table.open(encoding="utf-8", errors="replace", newline="") as lines:
            for row in csv.DictReader(lines, delimiter=";"):
                listed[folder / name / (row.get("Filename") or "")] = row.get("ClassId") or ""
    if different := sorted(set(paths) ^ set(listed)):
        has = "is not in the table of its class" if different[0] in set(paths) else "is missing"
        raise CoterieError(f"{different[0]} {has}: unpack the published archive again.")
    for path, label in zip(paths, labels, strict=True):
        if listed[path] != str(label):
            raise CoterieError(
                f"{path.parent}: the table gives {path.name} the class {listed[path]!r} where {label} is expected. "
                "Unpack the published archive again."
            )


def _reduced(path: Path) -> Examples:
    arrays = read_npz(path, {"x": (None, SIDE, SIDE, 3), "y": (None,), "track": (None,)})
    images, tracks = arrays["x"], arrays["track"]
    if images.dtype != np.uint8 or len(tracks) != len(images):
        raise CoterieError(
            f"{path}: 'x' is {images.dtype} with {len(images):,} pictures and 'track' has {len(tracks):,} entries "
            "where uint8 and equal numbers are expected. Replace it by the published file."
        )
    labels = class_labels(arrays["y"], len(images), len(CLASSES), f"{path}: the labels 'y'")
    upright = np.ascontiguousarray(images.astype(np.uint8, copy=False).transpose(0, 3, 1, 2))
    return _examples(upright, labels, [f"{int(track):05d}" for track in tracks.tolist()])


def _examples(images: np.ndarray, labels: np.ndarray, tracks: list[str]) -> Examples:
    # tracks are numbered anew in each class
    names = [f"{CLASSES[label]}-{track}" for label, track in zip(labels.tolist(), tracks, strict=True)]
    return Examples(
        "gtsrb",
        torch.from_numpy(images),
        torch.from_numpy(labels),
        classes=len(CLASSES),
        scale=1 / 255,
        groups={"track": names},
    )
