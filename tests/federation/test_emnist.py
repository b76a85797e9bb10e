from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from written import idx_bytes

from coterie.errors import CoterieError
from coterie.federation.datasets import SOURCES, find_source

PARTS = (("train", 6), ("test", 3))


def write(folder: Path, split: str, first: int, compress: bool = True) -> None:
    """A tiny split in the published layout; pixel (row, column) of image i is 100 i + 10 row + column, stored
    transposed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    row, column = np.mgrid[:4, :6]
    for part, n in PARTS:
        images = np.stack([(100 * (i % 2) + 10 * row + column).T for i in range(n)])
        for kind, values in (("images-idx3", images), ("labels-idx1", np.arange(n) + first)):
            content = idx_bytes(values)
            name = f"emnist-{split}-{part}-{kind}-ubyte"
            path = folder / (f"{name}.gz" if compress else name)
            path.write_bytes(gzip.compress(content) if compress else content)


@pytest.mark.parametrize(
    ("split", "source", "classes", "first"),
    [
        ("byclass", "emnist", 62, 0),
        ("bymerge", "emnist-bymerge", 47, 0),
        ("balanced", "emnist-balanced", 47, 0),
        ("letters", "emnist-letters", 26, 1),
        ("digits", "emnist-digits", 10, 0),
        ("mnist", "emnist-mnist", 10, 0),
    ],
)
def test_images_stand_upright_and_labels_start_at_zero(
    tmp_path: Path, split: str, source: str, classes: int, first: int
) -> None:
    write(tmp_path / "emnist", split, first)
    examples = find_source(source).load(tmp_path)
    assert (examples.name, examples.classes, examples.boundary) == (source, classes, 6)
    assert examples.inputs.shape == (9, 1, 4, 6)
    assert examples.inputs[1, 0, 2].tolist() == [120, 121, 122, 123, 124, 125]
    assert examples.targets.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert f"emnist-{split}" in SOURCES[source].files


@pytest.mark.parametrize("folder", ["emnist/gzip", "EMNIST/raw", "EMNIST/raw/gzip"])
def test_unpacked_archive_and_torchvision_layout(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, "digits", 0, compress=folder == "emnist/gzip")
    assert len(find_source("emnist-digits").load(tmp_path)) == 9


def test_a_letter_before_the_first(tmp_path: Path) -> None:
    write(tmp_path / "emnist", "letters", 0)
    with pytest.raises(
        CoterieError, match=r"train-labels-idx1-ubyte.gz holds the label 0, outside the classes 1 .. 26"
    ):
        find_source("emnist-letters").load(tmp_path)


def test_a_missing_file_says_what_is_there_instead(tmp_path: Path) -> None:
    write(tmp_path / "emnist", "digits", 0)
    with pytest.raises(CoterieError) as caught:
        find_source("emnist-balanced").load(tmp_path)
    message = str(caught.value)
    for part in ("emnist-balanced-train-images-idx3-ubyte.gz", "emnist holds emnist-digits-test-images", "--data-dir"):
        assert part in message


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=f"'emnist' needs the file .*, but {tmp_path}/emnist does not exist: put"):
        find_source("emnist").load(tmp_path)
