"""Sources that are archives of arrays: MedMNIST, Office-Home features, UCI HAR."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.datasets import find_source
from coterie.federation.datasets.medmnist import SETS
from coterie.federation.examples import Examples

Arrays = dict[str, Any]


def load(root: Path, source: str) -> Examples:
    return find_source(source).load(root)


def write(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_name(path.name.removesuffix(".xz"))
    np.savez_compressed(plain, **{name: array for name, array in arrays.items() if array is not None})
    if path != plain:
        path.write_bytes(lzma.compress(plain.read_bytes()))
        plain.unlink()


def medical(channels: int, classes: int) -> Arrays:
    generator = np.random.default_rng(0)
    shape = (28, 28) if channels == 1 else (28, 28, channels)
    arrays: Arrays = {}
    for part, n in (("train", 12), ("val", 5), ("test", 4)):
        arrays[f"{part}_images"] = generator.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n)[:, None] % classes).astype(np.uint8)
    return arrays


@pytest.mark.parametrize("name", SETS)
def test_medmnist(tmp_path: Path, name: str) -> None:
    _, classes, channels = SETS[name]
    arrays = medical(channels, classes)
    write(tmp_path / name / f"{name}.npz", arrays)
    examples = load(tmp_path, name)
    assert examples.inputs.shape == (21, channels, 28, 28)
    assert examples.inputs.dtype == torch.uint8
    assert (examples.name, examples.classes, examples.boundary, examples.scale) == (name, classes, 17, 1 / 255)
    # validation comes after training, and channels before rows
    wanted = arrays["val_images"][2, 9, 4]
    assert examples.inputs[14, :, 9, 4].tolist() == np.atleast_1d(wanted).tolist()
    assert examples.targets[12:17].tolist() == [i % classes for i in range(5)]


@pytest.mark.parametrize("place", ["medmnist/organamnist.npz", "organamnist.npz", "medmnist/organamnist.npz.xz"])
def test_medmnist_in_other_places(tmp_path: Path, place: str) -> None:
    write(tmp_path / place, medical(1, 11))
    section = {"source": "organamnist", "partition": {"rule": "iid", "clients": 2}, "test": "official"}
    federation = build_federation(section, seed=0, data_dir=tmp_path)
    assert federation.test.n.sum() == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_labels": None}, "holds no array 'val_labels', only test_images"),
        (
            {"val_images": np.zeros((5, 64, 64), dtype=np.uint8)},
            r"'val_images' has the shape \(5, 64, 64\) where \(N, 28",
        ),
        ({"val_images": np.zeros((5, 28, 28, 3), dtype=np.uint8)}, r"\(5, 28, 28, 3\) where \(N, 28, 28\) is expected"),
        ({"val_images": np.zeros((5, 28, 28))}, "'val_images' are float64 where uint8"),
        ({"test_labels": np.full((4, 1), 2, dtype=np.uint8)}, r"'test_labels' hold the label 2, outside .* 0 \.\. 1"),
        ({"test_labels": np.zeros((3, 1), dtype=np.uint8)}, "'test_labels' are 3 for 4 examples"),
        ({"test_labels": np.zeros((4, 14), dtype=np.uint8)}, r"'test_labels' has the shape \(4, 14\) where \(N, 1\)"),
    ],
)
def test_wrong_medmnist(tmp_path: Path, changes: Arrays, message: str) -> None:
    write(tmp_path / "pneumoniamnist/pneumoniamnist.npz", {**medical(1, 2), **changes})
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "pneumoniamnist")


def test_no_medmnist(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"'pathmnist' needs the file pathmnist.npz of MedMNIST .*does not exist"):
        load(tmp_path, "pathmnist")


def office(**changes: Any) -> Arrays:
    return {
        "features": np.random.default_rng(0).normal(size=(24, 512)),
        "labels": np.arange(24) % 65,
        "domains": np.array(["Art"] * 10 + ["Real World"] * 14),
    } | changes


@pytest.mark.parametrize("ending", ["npz", "npz.xz"])
def test_office_home(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"office-home/features.{ending}", office())
    examples = load(tmp_path, "office-home")
    assert examples.inputs.shape == (24, 512)
    assert examples.inputs.dtype == torch.float32
    assert (examples.classes, examples.boundary) == (65, None)
    section = {"source": "office-home", "partition": {"rule": "natural"}}
    federation = build_federation(section, seed=0, data_dir=tmp_path)
    assert federation.names == ("Art", "Real World")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros((24, 8), dtype=int)}, "'features' are int64 where floating point"),
        ({"features": np.zeros((24, 8, 8))}, r"\(24, 8, 8\) where \(N, N\) is expected"),
        ({"domains": np.arange(24)}, "'domains' are 24 values of int64 where the domain of each of 24"),
        ({"domains": np.array(["Art"] * 23)}, "'domains' are 23 values of <U3 where the domain of each of 24"),
        ({"labels": np.full(24, 65)}, r"'labels' hold the label 65, outside the classes 0 \.\. 64"),
    ],
)
def test_wrong_office_home(tmp_path: Path, changes: Arrays, message: str) -> None:
    write(tmp_path / "office-home/features.npz", office(**changes))
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "office-home")


def motion(**changes: Any) -> Arrays:
    return {
        "X": np.arange(24 * 9 * 32, dtype=np.int16).reshape(24, 9, 32),
        "y": (np.arange(24) % 6).astype(np.uint8),
        "subject": np.repeat([1, 30], 12).astype(np.uint8),
        "scale": np.float32(1 / 256),
    } | changes


def test_uci_har(tmp_path: Path) -> None:
    write(tmp_path / "uci-har/uci_har_32steps.npz.xz", motion())
    examples = load(tmp_path, "uci-har")
    assert examples.inputs.shape == (24, 9, 32)
    assert examples.inputs[0, 1, 3] == 35 / 256
    assert sorted(set(examples.groups["subject"])) == ["subject-01", "subject-30"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": None}, "holds no array 'scale'"),
        ({"X": np.zeros((24, 32, 9), dtype=np.int16)}, r"'X' has the shape \(24, 32, 9\) where \(N, 9, 32\)"),
        ({"X": np.zeros((24, 9, 32))}, "'X' is float64 where whole numbers"),
        ({"subject": np.ones(7, dtype=int)}, "'subject' has 7 entries for 24 windows"),
        ({"y": np.full(24, 6)}, "the labels 'y' hold the label 6"),
    ],
)
def test_wrong_uci_har(tmp_path: Path, changes: Arrays, message: str) -> None:
    write(tmp_path / "uci-har/uci_har_32steps.npz.xz", motion(**changes))
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "uci-har")


@pytest.mark.data
def test_real_motion(real_file: Callable[[str], Path]) -> None:
    root = real_file("uci-har/uci_har_32steps.npz.xz")
    federation = build_federation({"source": "uci-har", "partition": {"rule": "natural"}}, seed=0, data_dir=root)
    assert federation.k == 30
    assert federation.feature_shape == (9, 32)
    sizes = federation.train.n + federation.validation.n + federation.test.n
    assert sizes[:10].tolist() == [347, 302, 341, 317, 302, 325, 308, 281, 288, 294]
    assert federation.class_counts("train").sum() == federation.train.total
    # total acceleration less that of the body is gravity, whose length is about 1 g
    x = federation.train.client(0)[0]
    assert float((x[:, 6:] - x[:, :3]).norm(dim=1).mean()) == pytest.approx(1.02, abs=0.01)
