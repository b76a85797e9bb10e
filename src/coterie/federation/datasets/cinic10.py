"""CINIC-10: CIFAR-10 enlarged by pictures of ImageNet, as folders of PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.federation.datasets.files import find
from coterie.federation.datasets.images import class_folders, read_images
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

PLACES = ("cinic10", "cinic10/CINIC-10", "CINIC-10")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STATISTICS = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))  # of its authors


@register_source(
    "cinic10",
    "270,000 colour photographs of 32 x 32 pixels, the 10 classes of CIFAR-10; needs coterie[images]",
    "cinic10/{train,valid,test}/<class>/*.png, or CINIC-10/, the unpacked CINIC-10.tar.gz",
)
def cinic10(data_dir: Path | None) -> Examples:
    """The training and validation images, then the 90,000 test ones, ``(N, 3, 32, 32)`` uint8.

    Natural groups: ``origin``, which is ``cifar10`` or ``imagenet`` and stands in the file names.

    Raises:
        CoterieError: a folder is missing or empty, or a file damaged or of another size; Pillow is missing.
    """
    expected = "the folders train, valid and test of CINIC-10, each with 10 folders of PNG files"
    folder = find(data_dir, "cinic10", [f"{place}/train" for place in PLACES], expected).parent
    parts = [class_folders(folder / part, CLASSES, "*.png") for part in ("train", "valid", "test")]
    paths = [path for of_part, _ in parts for path in of_part]
    return Examples(
        "cinic10",
        torch.from_numpy(read_images(paths, (32, 32))),
        torch.from_numpy(np.concatenate([labels for _, labels in parts])),
        classes=len(CLASSES),
        boundary=len(paths) - len(parts[-1][0]),
        scale=1 / 255,
        groups={"origin": ["cifar10" if path.name.startswith("cifar10-") else "imagenet" for path in paths]},
        statistics=STATISTICS,
    )
