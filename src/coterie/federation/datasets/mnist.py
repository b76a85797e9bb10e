"""MNIST and Fashion-MNIST, which share names, shapes and format of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import Published, obtain
from coterie.federation.datasets.idx import read_idx
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_SHA256 = {
    TRAIN_IMAGES: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    TRAIN_LABELS: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    TEST_IMAGES: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    TEST_LABELS: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
FASHION_SHA256 = {
    TRAIN_IMAGES: "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    TRAIN_LABELS: "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    TEST_IMAGES: "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    TEST_LABELS: "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}


@register_source(
    "mnist",
    "70,000 handwritten digits of 28 x 28 pixels, 10 classes; downloaded where missing",
    "mnist/*-ubyte.gz (4 files), or MNIST/raw/",
)
def mnist(data_dir: Path | None) -> Examples:
    """The 60,000 training and 10,000 test images, uint8."""
    files = {name: Published(name, sha, MNIST_MIRRORS) for name, sha in MNIST_SHA256.items()}
    paths = {name: obtain(file, data_dir, "mnist", ("mnist", "MNIST/raw")) for name, file in files.items()}
    return load_idx_set("mnist", paths, statistics=((0.1307,), (0.3081,)))


@register_source(
    "fashion-mnist",
    "70,000 pictures of clothing of 28 x 28 pixels, 10 classes; downloaded where missing",
    "fashion-mnist/*-ubyte.gz (4 files), or FashionMNIST/raw/",
)
def fashion_mnist(data_dir: Path | None) -> Examples:
    """The 60,000 training and 10,000 test images, uint8."""
    files = {name: Published(name, sha, FASHION_MIRRORS) for name, sha in FASHION_SHA256.items()}
    folders = ("fashion-mnist", "FashionMNIST/raw")
    paths = {name: obtain(file, data_dir, "fashion-mnist", folders) for name, file in files.items()}
    return load_idx_set("fashion-mnist", paths, statistics=((0.2860,), (0.3530,)))


def load_idx_set(
    source: str,
    paths: Mapping[str, Path],
    classes: int = 10,
    first_label: int = 0,
    transposed: bool = False,
    statistics: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Examples:
    """Read the four files of such a set; images ``(N, 1, height, width)`` uint8, training ones first.

    Args:
        source: name of the source.
        paths: the four files, by the names that they have in MNIST.
        classes: number of classes C.
        first_label: what the file calls the first class; here classes are ``0 .. C - 1``.
        transposed: the file has columns of pixels where others have rows.
        statistics: see ``Examples``.

    Raises:
        CoterieError: a file is damaged or does not fit its partner; the message names it.
    """
    labelled = range(first_label, first_label + classes)
    parts = [
        _pair(paths[TRAIN_IMAGES], paths[TRAIN_LABELS], labelled),
        _pair(paths[TEST_IMAGES], paths[TEST_LABELS], labelled),
    ]
    shapes = [images.shape[1:] for images, _ in parts]
    if shapes[0] != shapes[1]:
        raise CoterieError(
            f"{paths[TEST_IMAGES]} has images of {shapes[1]} pixels but {paths[TRAIN_IMAGES]} of "
            f"{shapes[0]}: the files belong to different data sets. Replace them by the published ones."
        )
    images = np.concatenate([images.transpose(0, 2, 1) if transposed else images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64) - first_label
    return Examples(
        source,
        torch.from_numpy(np.ascontiguousarray(images))[:, None],
        torch.from_numpy(labels),
        classes=classes,
        boundary=len(parts[0][0]),
        scale=1 / 255,
        statistics=statistics,
    )


def _pair(images_path: Path, labels_path: Path, labelled: range) -> tuple[np.ndarray, np.ndarray]:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise CoterieError(
            f"{labels_path} has {len(labels):,} labels but {images_path} has {len(images):,} images: the "
            "files do not belong together. Replace them by the published ones."
        )
    wrong = labels[(labels < labelled.start) | (labels >= labelled.stop)]
    if len(wrong):
        raise CoterieError(
            f"{labels_path} holds the label {wrong[0]}, outside the classes {labelled.start} .. {labelled.stop - 1}. "
            "Replace it by the published file."
        )
    return images, labels
