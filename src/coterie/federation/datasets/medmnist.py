"""MedMNIST: medical images of 28 x 28 pixels, one .npz file a set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.npz import ENDINGS, Shape, class_labels, read_npz
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

SIDE = 28
PARTS = ("train", "val", "test")

# name: what, classes, channels. ChestMNIST is not here: its images have several labels at once
SETS = {
    "bloodmnist": ("blood cells under the microscope", 8, 3),
    "breastmnist": ("breast ultrasound", 2, 1),
    "dermamnist": ("skin lesions", 7, 3),
    "octmnist": ("retinal tomography", 4, 1),
    "organamnist": ("abdominal CT, axial slices", 11, 1),
    "organcmnist": ("abdominal CT, coronal slices", 11, 1),
    "organsmnist": ("abdominal CT, sagittal slices", 11, 1),
    "pathmnist": ("colon tissue under the microscope", 9, 3),
    "pneumoniamnist": ("chest X-rays of children", 2, 1),
    "retinamnist": ("photographs of the retina", 5, 3),
    "tissuemnist": ("kidney cells under the microscope", 8, 1),
}


def medmnist(name: str, data_dir: Path | None) -> Examples:
    """The official training and validation images, then the test ones, ``(N, channels, 28, 28)`` uint8.

    Raises:
        CoterieError: the file is missing or damaged, or holds arrays of another shape or labels outside the classes.
    """
    _, classes, channels = SETS[name]
    places = [f"{folder}{name}{ending}" for folder in (f"{name}/", "medmnist/", "") for ending in ENDINGS]
    path = find(data_dir, name, places, f"the file {name}.npz of MedMNIST (or {name}.npz.xz)")
    shape: Shape = (None, SIDE, SIDE) if channels == 1 else (None, SIDE, SIDE, channels)
    expected: dict[str, Shape] = {}
    for part in PARTS:
        expected |= {f"{part}_images": shape, f"{part}_labels": (None, 1)}
    arrays = read_npz(path, expected)
    images, labels = [], []
    for part in PARTS:
        pixels = arrays[f"{part}_images"]
        if pixels.dtype != np.uint8:
            raise CoterieError(
                f"{path}: '{part}_images' are {pixels.dtype} where uint8 is expected. Replace it by the published file."
            )
        images.append(pixels.reshape(-1, SIDE, SIDE, channels).transpose(0, 3, 1, 2))
        labels.append(class_labels(arrays[f"{part}_labels"], len(pixels), classes, f"{path}: '{part}_labels'"))
    return Examples(
        name,
        torch.from_numpy(np.ascontiguousarray(np.concatenate(images), dtype=np.uint8)),
        torch.from_numpy(np.concatenate(labels)),
        classes=classes,
        boundary=len(labels[0]) + len(labels[1]),
        scale=1 / 255,
    )


def _enter(name: str) -> None:
    about, classes, channels = SETS[name]
    register_source(
        name,
        f"MedMNIST: {about}; 28 x 28 pixels, {'grey' if channels == 1 else 'colour'}, {classes} classes",
        f"medmnist/{name}.npz (or .npz.xz), or in {name}/",
    )(lambda data_dir: medmnist(name, data_dir))


for _name in SETS:
    _enter(_name)
