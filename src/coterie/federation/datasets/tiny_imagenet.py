"""Tiny ImageNet: 200 classes of ImageNet, reduced to 64 x 64 pixels, as JPEG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.images import class_folders, read_images
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

FOLDER = "tiny-imagenet-200"
CLASSES = 200


@register_source(
    "tiny-imagenet",
    "110,000 colour photographs of 64 x 64 pixels, 200 classes; needs coterie[images]",
    "tiny-imagenet/tiny-imagenet-200/ or tiny-imagenet-200/, the unpacked tiny-imagenet-200.zip",
)
def tiny_imagenet(data_dir: Path | None) -> Examples:
    """The 100,000 training images and the 10,000 validation ones, which serve as the test set.

    The labels of the published test set are not public, so papers test on the validation set. Images are
    ``(110000, 3, 64, 64)`` uint8; classes are in the order of their WordNet numbers.

    Raises:
        CoterieError: a folder or file is missing, damaged or of another size; Pillow is missing.
    """
    expected = f"the folder {FOLDER} with train/<class>/images/*.JPEG and val/val_annotations.txt"
    folder = find(data_dir, "tiny-imagenet", [f"tiny-imagenet/{FOLDER}", FOLDER, "tiny-imagenet"], expected)
    train, train_labels = class_folders(folder / "train", CLASSES, "images/*.JPEG")
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    test, test_labels = _annotated(folder / "val", {name: label for label, name in enumerate(names)})
    return Examples(
        "tiny-imagenet",
        torch.from_numpy(read_images(train + test, (64, 64))),
        torch.from_numpy(np.concatenate([train_labels, test_labels])),
        classes=CLASSES,
        boundary=len(train),
        scale=1 / 255,
    )


def _annotated(folder: Path, label_of: dict[str, int]) -> tuple[list[Path], NDArray[np.int64]]:
    """The validation pictures and their labels; each line of the table is file, class and a box, with tabs between."""
    table = folder / "val_annotations.txt"
    if not table.is_file():
        raise CoterieError(f"{table} is missing: unpack the published archive again.")
    paths, labels = [], []
    for number, line in enumerate(table.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in label_of:
            raise CoterieError(
                f"{table}, line {number}: {name or line!r} is none of the {len(label_of)} classes of train/. Unpack "
                "the published archive again."
            )
        paths.append(folder / "images" / file)
        labels.append(label_of[name])
    return paths, np.array(labels, dtype=np.int64)
