"""CIFAR-10 and CIFAR-100 in their Python version: pickles in a folder or, without unpacking, in the archive."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import Published, data_directory, obtain
from coterie.federation.datasets.pickles import unpickle
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples

SHAPE = (3, 32, 32)
STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # of CIFAR-10; papers use them for both sets
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)


@dataclass(frozen=True)
class Layout:
    """One of the two sets as published: its folder, which files are for training and which for testing, the labels."""

    source: str
    folder: str
    archive: Published
    train: Sequence[str]
    test: str
    labels: str
    classes: int


CIFAR10 = Layout(
    "cifar10",
    "cifar-10-batches-py",
    Published("cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce", MIRRORS),
    train=[f"data_batch_{i}" for i in range(1, 6)],
    test="test_batch",
    labels="labels",
    classes=10,
)
CIFAR100 = Layout(
    "cifar100",
    "cifar-100-python",
    Published("cifar-100-python.tar.gz", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7", MIRRORS),
    train=["train"],
    test="test",
    labels="fine_labels",
    classes=100,
)


@register_source(
    "cifar10",
    "60,000 colour photographs of 32 x 32 pixels, 10 classes; downloaded where missing",
    "cifar10/cifar-10-batches-py/ or cifar10/cifar-10-python.tar.gz (or .tar.xz)",
)
def cifar10(data_dir: Path | None) -> Examples:
    """The 50,000 training and 10,000 test images, ``(60000, 3, 32, 32)`` uint8."""
    return load_cifar(CIFAR10, data_dir)


@register_source(
    "cifar100",
    "60,000 colour photographs of 32 x 32 pixels, 100 classes (fine labels); downloaded where missing",
    "cifar100/cifar-100-python/ or cifar100/cifar-100-python.tar.gz (or .tar.xz)",
)
def cifar100(data_dir: Path | None) -> Examples:
    """The 50,000 training and 10,000 test images, ``(60000, 3, 32, 32)`` uint8, with fine labels."""
    return load_cifar(CIFAR100, data_dir)


def load_cifar(layout: Layout, data_dir: Path | None) -> Examples:
    """Read the batches, training ones first.

    Raises:
        CoterieError: missing, truncated or damaged files, wrong shapes, labels outside the classes.
    """
    wanted = [*layout.train, layout.test]
    place = _place(layout, data_dir)
    content = _from_folder(place, wanted) if place.is_dir() else _from_archive(place, layout.folder, wanted)
    images, labels = [], []
    for name in wanted:
        x, y = _batch(content.pop(name), f"{name} in {place}", layout)
        images.append(x)
        labels.append(y)
    return Examples(
        layout.source,
        torch.from_numpy(np.concatenate(images)),
        torch.from_numpy(np.concatenate(labels)),
        classes=layout.classes,
        boundary=sum(len(y) for y in labels[:-1]),
        scale=1 / 255,
        statistics=STATISTICS,
    )


def _place(layout: Layout, data_dir: Path | None) -> Path:
    """The folder or the archive, below ``<source>/`` or, as torchvision has it, straight in the data directory."""
    root, archive = data_directory(data_dir), layout.archive
    xz = archive.name.replace(".gz", ".xz")
    for folder in (root / layout.source, root):
        for name in (layout.folder, archive.name, xz):
            if (folder / name).exists():
                return folder / name
    return obtain(archive, data_dir, layout.source, [layout.source])


def _from_folder(folder: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """The content of these files."""
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise CoterieError(
            f"{folder} lacks {', '.join(missing)}: unpack the published archive again, or put the archive itself in "
            "its place."
        )
    return {name: (folder / name).read_bytes() for name in wanted}


def _from_archive(path: Path, folder: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """The content of these members, read in one pass and never written to disk."""
    content: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(f"{folder}/")
                if name in wanted and member.isfile() and (file := archive.extractfile(member)) is not None:
                    content[name] = file.read()
                if len(content) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise CoterieError(f"{path} is truncated or damaged ({error}). Download or copy it again.") from error
    if missing := [name for name in wanted if name not in content]:
        raise CoterieError(
            f"{path} holds no {folder}/{missing[0]}: it is truncated or another archive. Download or copy it again."
        )
    return content


def _batch(content: bytes, where: str, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Images ``(n, 3, 32, 32)`` uint8 and labels ``(n,)`` int64 of one batch."""
    remedy = "Download or copy the archive again."
    try:
        batch = unpickle(content)
    except ValueError as error:
        raise CoterieError(f"{where} is damaged or no batch of {layout.source} ({error}). {remedy}") from error
    data, labels = _entry(batch, "data"), _entry(batch, layout.labels)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (np.prod(SHAPE),):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else f"{type(data).__name__}"
        raise CoterieError(
            f"{where} has {found} where an array of uint8 (n, {np.prod(SHAPE)}) 'data' is expected. {remedy}"
        )
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise CoterieError(f"{where} has no list {layout.labels!r} of whole numbers. {remedy}")
    if len(labels) != len(data):
        raise CoterieError(f"{where} has {len(data):,} images but {len(labels):,} {layout.labels}. {remedy}")
    if wrong := [label for label in labels if not 0 <= label < layout.classes]:
        raise CoterieError(
            f"{where} holds the label {wrong[0]}, outside the classes 0 .. {layout.classes - 1}. {remedy}"
        )
    return data.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64)


def _entry(batch: object, key: str) -> Any:
    """An entry by its key, which some writers have as bytes."""
    if not isinstance(batch, Mapping):
        return None
    return batch.get(key, batch.get(key.encode()))
