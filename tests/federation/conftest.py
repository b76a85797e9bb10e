"""Data for the federation tests: real files where they are, and small IDX files written on the spot."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from written import idx_bytes

from coterie.federation.data import ClientData
from coterie.federation.datasets.mnist import TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS
from coterie.federation.examples import Examples
from coterie.federation.federation import Federation

NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


@pytest.fixture(scope="session")
def real_file() -> Callable[[str], Path]:
    """The folder of real data, after a check that it holds the file asked for."""

    def folder(file: str) -> Path:
        named = os.environ.get("COTERIE_DATA")
        if not named:
            pytest.skip("COTERIE_DATA is not set")
        if not (Path(named) / file).exists():
            pytest.skip(f"COTERIE_DATA holds no {file}")
        return Path(named)

    return folder


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """The folder of real data, after a check that it holds the source asked for."""

    def folder(source: str) -> Path:
        named = os.environ.get("COTERIE_DATA")
        if not named:
            pytest.skip("COTERIE_DATA is not set")
        if missing := [name for name in NAMES if not (Path(named) / source / name).exists()]:
            pytest.skip(f"COTERIE_DATA holds no {source}/{missing[0]}")
        return Path(named)

    return folder


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    """A data directory with a tiny MNIST: 60 training and 20 test images of 6 x 4 pixels."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for images, labels, n in ((TRAIN_IMAGES, TRAIN_LABELS, 60), (TEST_IMAGES, TEST_LABELS, 20)):
        pixels = generator.integers(0, 256, (n, 6, 4))
        (folder / images).write_bytes(gzip.compress(idx_bytes(pixels)))
        (folder / labels).write_bytes(gzip.compress(idx_bytes(np.arange(n) % 10)))
    return tmp_path


@pytest.fixture
def make_examples() -> Callable[..., Examples]:
    """Labelled examples whose single input is their own row number, so that rows can be traced."""

    def make(per_class: list[int], test_per_class: list[int] | None = None, name: str = "toy") -> Examples:
        labels = np.repeat(np.arange(len(per_class)), per_class)
        boundary = None
        if test_per_class is not None:
            boundary = len(labels)
            labels = np.concatenate([labels, np.repeat(np.arange(len(per_class)), test_per_class)])
        inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
        return Examples(name, inputs, torch.from_numpy(labels), len(per_class), boundary=boundary)

    return make


@pytest.fixture
def make_federation() -> Callable[..., Federation]:
    """Three clients with 4, 2 and 3 examples in every split, 2 features and 3 classes; fields can be
    replaced.
    """

    def make(**fields: object) -> Federation:
        generator = torch.Generator().manual_seed(0)

        def split() -> ClientData:
            return ClientData(
                torch.randn(9, 2, generator=generator),
                torch.tensor([0, 1, 2, 0, 1, 1, 2, 2, 0]),
                torch.tensor([0, 4, 6, 9]),
            )

        values: dict[str, object] = {
            "names": ("ann", "bob", "cid"),
            "train": split(),
            "validation": split(),
            "test": split(),
            "task": "classification",
            "classes": 3,
            "source": {"clients": {"angle": [0.0, 10.0, 20.0]}},
        }
        return Federation(**{**values, **fields})

    return make
