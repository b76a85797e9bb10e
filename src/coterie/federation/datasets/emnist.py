"""EMNIST: handwritten digits and letters in the IDX format of MNIST, in several splits."""

from __future__ import annotations

from pathlib import Path

from coterie.federation.datasets.files import find
from coterie.federation.datasets.mnist import TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, load_idx_set
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

FOLDERS = ("emnist", "emnist/gzip", "EMNIST/raw", "EMNIST/raw/gzip")  # gzip/ is what the published archive unpacks to
PAPERS = "byclass"  # the split of 62 classes, which papers call EMNIST

# split: images, classes, the label of its first class
SPLITS = {
    "byclass": ("814,255 handwritten digits and letters", 62, 0),
    "bymerge": ("814,255 handwritten digits and letters, look-alike cases merged", 47, 0),
    "balanced": ("131,600 handwritten digits and letters, equally many of each", 47, 0),
    "letters": ("145,600 handwritten letters, both cases in one", 26, 1),
    "digits": ("280,000 handwritten digits", 10, 0),
    "mnist": ("70,000 handwritten digits, made like MNIST", 10, 0),
}


def emnist(split: str, data_dir: Path | None) -> Examples:
    """The training and test images of one split, ``(N, 1, 28, 28)`` uint8.

    The files hold every image transposed; here letters stand upright. Labels of the letters start at 1 in the files
    and at 0 here.

    Raises:
        CoterieError: a file is missing, damaged, or does not fit its partner; the message names it.
    """
    _, classes, first_label = SPLITS[split]
    paths = {}
    for name in (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS):
        file = f"emnist-{split}-{name.replace('t10k', 'test')}"
        places = [f"{folder}/{form}" for folder in FOLDERS for form in (file, file.removesuffix(".gz"))]
        paths[name] = find(data_dir, "emnist", places, f"the file {file} (in gzip.zip of the published set)")
    return load_idx_set(_name(split), paths, classes, first_label, transposed=True)


def _name(split: str) -> str:
    return "emnist" if split == PAPERS else f"emnist-{split}"


def _enter(split: str) -> None:
    about, classes, _ = SPLITS[split]
    register_source(
        _name(split),
        f"{about}; 28 x 28 pixels, {classes} classes",
        f"emnist/emnist-{split}-*-ubyte.gz (4 files), or EMNIST/raw/",
    )(lambda data_dir: emnist(split, data_dir))


for _split in SPLITS:
    _enter(_split)
