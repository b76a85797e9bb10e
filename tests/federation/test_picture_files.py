"""Sources whose examples are picture files: CINIC-10, Tiny ImageNet, and what they share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from written import write_picture

from coterie.errors import CoterieError
from coterie.federation.datasets import find_source
from coterie.federation.datasets.images import class_folders, read_images
from coterie.federation.examples import Examples

CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(root: Path, source: str) -> Examples:
    return find_source(source).load(root)


def pixels(value: int, height: int = 32, width: int = 32) -> np.ndarray:
    """A picture whose channels are a ramp over columns, the row number, and ``value``."""
    row, column = np.mgrid[:height, :width]
    return np.stack([column, row, np.full_like(row, value)], axis=2).astype(np.uint8)


@pytest.fixture
def cinic(tmp_path: Path) -> Path:
    """Two training, one validation and one test picture a class; the blue channel is 10 x class + number."""
    for c, name in enumerate(CINIC):
        for part, files in {
            "train": ["cifar10-train-7.png", "n02123045_12.png"],
            "valid": ["n02123045_3.png"],
            "test": ["cifar10-test-1.png"],
        }.items():
            for i, file in enumerate(files):
                write_picture(tmp_path / "cinic10" / part / name / file, pixels(10 * c + i))
    return tmp_path


def test_cinic10(cinic: Path) -> None:
    examples = load(cinic, "cinic10")
    assert examples.inputs.shape == (40, 3, 32, 32)
    assert (examples.boundary, examples.classes, examples.scale) == (30, 10, 1 / 255)
    assert examples.targets.tolist() == [c for c in range(10) for _ in "ab"] + [*range(10), *range(10)]
    # red is the column, green the row, blue says which picture it is
    assert examples.inputs[3, :, 5, 7].tolist() == [7, 5, 11]
    assert examples.inputs[30, 2, 0, 0] == 0
    assert examples.groups["origin"][:2] == ["cifar10", "imagenet"]
    assert examples.groups["origin"][20:] == ["imagenet"] * 10 + ["cifar10"] * 10


@pytest.mark.parametrize("place", ["CINIC-10", "cinic10/CINIC-10"])
def test_cinic10_as_unpacked(cinic: Path, place: str) -> None:
    wanted = load(cinic, "cinic10").digest
    (cinic / "cinic10").rename(cinic / "moved")
    (cinic / place).parent.mkdir(exist_ok=True)
    (cinic / "moved").rename(cinic / place)
    assert load(cinic, "cinic10").digest == wanted


def test_grey_pictures_get_three_channels(cinic: Path) -> None:
    write_picture(cinic / "cinic10/train/airplane/cifar10-train-7.png", pixels(9)[:, :, 0])
    assert load(cinic, "cinic10").inputs[0, :, 5, 7].tolist() == [7, 7, 7]


def remove(path: Path) -> None:
    for inner in path.iterdir():
        inner.unlink()
    path.rmdir()


def empty(path: Path) -> None:
    for inner in path.iterdir():
        inner.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: remove(root / "valid/cat"),
            r"valid should hold one folder for each of 10 classes, .*\(9 folders",
        ),
        (lambda root: (root / "test/cat").rename(root / "test/lion"), "test should hold one folder for each of 10"),
        (lambda root: (root / "train/new").mkdir(), r"\(11 folders in all\): unpack the published archive again"),
        (lambda root: empty(root / "train/cat"), r"train/cat has no picture \*.png, but .*train/cat holds nothing"),
        (lambda root: (root / "test").rename(root / "tests"), "cinic10/test does not exist"),
        (
            lambda root: write_picture(root / "test/dog/cifar10-test-1.png", pixels(0, 30, 32)),
            "dog/cifar10-test-1.png has 30 x 32 pixels where 32 x 32 are expected",
        ),
        (
            lambda root: (root / "test/dog/cifar10-test-1.png").write_bytes(b"<html>"),
            "dog/cifar10-test-1.png is no picture or damaged",
        ),
        (
            lambda root: (root / "test/dog/cifar10-test-1.png").write_bytes(
                (root / "test/dog/cifar10-test-1.png").read_bytes()[:-40]
            ),
            "dog/cifar10-test-1.png is no picture or damaged",
        ),
    ],
)
def test_cinic10_that_is_not_as_published(cinic: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(cinic / "cinic10")
    with pytest.raises(CoterieError, match=message):
        load(cinic, "cinic10")


def test_nothing_there_says_what_should_be(tmp_path: Path) -> None:
    (tmp_path / "cinic10" / "pictures").mkdir(parents=True)
    with pytest.raises(CoterieError, match=r"train, valid and test of CINIC-10, .*but .*cinic10 holds pictures: put"):
        load(tmp_path, "cinic10")


def test_pillow_is_optional(cinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(CoterieError, match=r"Pillow, which is not installed: .*pip install 'coterie\[images\]'"):
        load(cinic, "cinic10")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 classes with two training pictures each, and 4 validation pictures."""
    root = tmp_path_factory.mktemp("tiny") / "tiny-imagenet-200"
    names = [f"n{100 + c:08d}" for c in range(200)]
    for c, name in enumerate(names):
        for i in range(2):
            write_picture(root / f"train/{name}/images/{name}_{i}.JPEG", np.full((64, 64, 3), c, dtype=np.uint8))
        (root / f"train/{name}/{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t63\t63\n")
    lines = []
    for i, c in enumerate((5, 199, 0, 5)):
        write_picture(root / f"val/images/val_{i}.JPEG", np.full((64, 64), c, dtype=np.uint8))  # some are grey
        lines.append(f"val_{i}.JPEG\t{names[c]}\t0\t32\t44\t62\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(reversed(names)))
    (root / "test/images").mkdir(parents=True)
    return root.parent


def test_tiny_imagenet(tiny: Path) -> None:
    examples = load(tiny, "tiny-imagenet")
    assert examples.inputs.shape == (404, 3, 64, 64)
    assert (examples.boundary, examples.classes) == (400, 200)
    assert examples.targets[:4].tolist() == [0, 0, 1, 1]
    assert examples.targets[400:].tolist() == [5, 199, 0, 5]
    shown = examples.inputs[:, :, 10, 20].float().mean(1)
    assert np.allclose(shown, examples.targets, atol=3)  # JPEG


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "val_0.JPEG\tn00000101\t0\t0\t1\t1\nval_1.JPEG\tn99\t0\t0\t1\t1\n",
            "line 2: 'n99' is none of the 200 classes",
        ),
        ("val_0.JPEG n00000101\n", "line 1: 'val_0.JPEG n00000101' is none of the 200"),
        ("val_9.JPEG\tn00000101\t0\t0\t1\t1\n", "val/images/val_9.JPEG is missing"),
        (None, r"val_annotations.txt is missing: unpack"),
    ],
)
def test_tiny_imagenet_with_another_table(tiny: Path, table: str | None, message: str) -> None:
    path = tiny / "tiny-imagenet-200/val/val_annotations.txt"
    published = path.read_text()
    try:
        path.unlink() if table is None else path.write_text(table)
        with pytest.raises(CoterieError, match=message):
            load(tiny, "tiny-imagenet")
    finally:
        path.write_text(published)


def test_class_folders_in_alphabetical_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_picture(tmp_path / name / "2.png", pixels(1))
        write_picture(tmp_path / name / "10.png", pixels(1))
    paths, labels = class_folders(tmp_path, 2, "*.png")
    assert [str(path.relative_to(tmp_path)) for path in paths] == ["a/10.png", "a/2.png", "b/10.png", "b/2.png"]
    assert labels.tolist() == [0, 0, 1, 1]


def test_resizing_on_request(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", pixels(7, 20, 40))
    assert read_images([tmp_path / "a.png"], (10, 8), resize=True).shape == (1, 3, 10, 8)
    assert read_images([tmp_path / "a.png"], (20, 40), "L").shape == (1, 1, 20, 40)
