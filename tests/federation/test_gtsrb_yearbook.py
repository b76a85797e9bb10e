from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import write_picture

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.datasets import find_source
from coterie.federation.examples import Examples

IMAGES = "gtsrb/GTSRB/Final_Training/Images"
FACES = "yearbook/faces_aligned_small_mirrored_co_aligned_cropped_cleaned"


def load(root: Path, source: str) -> Examples:
    return find_source(source).load(root)


def write_signs(root: Path, place: str = IMAGES) -> Path:
    """43 classes of two tracks; one picture of the first and two of the second, in different sizes."""
    for c in range(43):
        folder = root / place / f"{c:05d}"
        lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
        for track, number in ((0, 0), (1, 0), (1, 29)):
            side = 20 + 15 * track + number
            file = f"{track:05d}_{number:05d}.ppm"
            write_picture(folder / file, np.full((side, side + 3, 3), [c, 5 * track, number], dtype=np.uint8))
            lines.append(f"{file};{side + 3};{side};5;5;{side - 5};{side - 5};{c}")
        (folder / f"GT-{c:05d}.csv").write_text("\n".join(lines) + "\n")
    return root / place


@pytest.mark.parametrize("place", [IMAGES, IMAGES.removeprefix("gtsrb/")])
def test_the_official_signs(tmp_path: Path, place: str) -> None:
    write_signs(tmp_path, place)
    examples = load(tmp_path, "gtsrb")
    assert examples.inputs.shape == (129, 3, 32, 32)
    assert (examples.classes, examples.boundary, examples.scale) == (43, None, 1 / 255)
    assert examples.inputs[5, :, 16, 16].tolist() == [1, 5, 29]
    assert examples.targets[:4].tolist() == [0, 0, 0, 1]
    assert list(examples.groups["track"][2:4]) == ["00000-00001", "00001-00000"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "00003/GT-00003.csv").unlink(), r"00003/GT-00003.csv is missing: unpack"),
        (lambda f: (f / "00003/00001_00029.ppm").unlink(), r"00003/00001_00029.ppm is missing: unpack"),
        (
            lambda f: write_picture(f / "00003/00009_00000.ppm", np.zeros((9, 9, 3), dtype=np.uint8)),
            r"00003/00009_00000.ppm is not in the table of its class",
        ),
        (
            lambda f: (f / "00003/GT-00003.csv").write_text((f / "00004/GT-00004.csv").read_text()),
            r"Images/00003: the table gives 00000_00000.ppm the class '4' where 3 is expected",
        ),
        (lambda f: (f / "00042").rename(f / "00043"), r"one folder for each of 43 classes"),
        (lambda f: (f / "00042/00000_00000.ppm").write_bytes(b"P6\n30 30\n255\n123"), "00000_00000.ppm is no picture"),
    ],
)
def test_signs_that_are_not_as_published(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(write_signs(tmp_path))
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "gtsrb")


def write_reduced(root: Path, ending: str = ".npz.xz", **changes: Any) -> Path:
    arrays = {
        "x": np.arange(6 * 32 * 32 * 3, dtype=np.uint32).astype(np.uint8).reshape(6, 32, 32, 3),
        "y": np.array([0, 0, 42, 42, 7, 7]),
        "track": np.array([0, 0, 0, 1, 5, 5], dtype=np.int16),
    } | changes
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in arrays.items() if array is not None})
    path = root / "gtsrb" / f"gtsrb_32x32_5000{ending}"
    path.parent.mkdir(parents=True)
    path.write_bytes(lzma.compress(buffer.getvalue()) if ending.endswith(".xz") else buffer.getvalue())
    return path


@pytest.mark.parametrize("ending", [".npz", ".npz.xz"])
def test_the_reduced_signs(tmp_path: Path, ending: str) -> None:
    write_reduced(tmp_path, ending)
    examples = load(tmp_path, "gtsrb")
    assert examples.inputs.shape == (6, 3, 32, 32)
    assert examples.inputs[0, :, 0, 1].tolist() == [3, 4, 5]  # channels last in the file
    assert list(examples.groups["track"]) == ["00000-00000"] * 2 + ["00042-00000", "00042-00001"] + ["00007-00005"] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"track": None}, "holds no array 'track', only x, y: it should hold x, y, track"),
        ({"x": np.zeros((6, 30, 30, 3), dtype=np.uint8)}, r"'x' has the shape \(6, 30, 30, 3\) where \(N, 32, 32, 3\)"),
        ({"x": np.zeros((6, 32, 32, 3))}, "'x' is float64 with 6 pictures"),
        ({"track": np.zeros(5, dtype=np.int16)}, "'track' has 5 entries"),
        ({"y": np.array([0, 0, 0, 0, 0, 43])}, r"the labels 'y' hold the label 43, outside the classes 0 \.\. 42"),
        ({"y": np.array([0, 0, -1, 0, 0, 4])}, "hold the label -1"),
        ({"y": np.zeros(6)}, "the labels 'y' are float64 where whole numbers"),
        ({"y": np.zeros(7, dtype=int)}, "the labels 'y' are 7 for 6 examples"),
        ({"y": np.array([None] * 6)}, "is truncated, damaged or no archive of plain arrays"),
    ],
)
def test_wrong_reduced_signs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_reduced(tmp_path, **changes)
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "gtsrb")


@pytest.mark.parametrize("ending", [".npz", ".npz.xz"])
@pytest.mark.parametrize("cut", [lambda b: b[:-30], lambda b: b[:100], lambda b: b"", lambda b: b"<html>gone</html>"])
def test_a_truncated_archive(tmp_path: Path, ending: str, cut: Callable[[bytes], bytes]) -> None:
    path = write_reduced(tmp_path, ending)
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(CoterieError, match=f"5000{ending} is truncated, damaged or no archive .*Download or copy"):
        load(tmp_path, "gtsrb")


def test_no_signs(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"43 folders of .ppm pictures, or the archive gtsrb_32x32_5000.npz.xz, but"):
        load(tmp_path, "gtsrb")


@pytest.mark.data
def test_real_signs(real_file: Callable[[str], Path]) -> None:
    examples = load(real_file("gtsrb/gtsrb_32x32_5000.npz.xz"), "gtsrb")
    assert examples.inputs.shape == (5000, 3, 32, 32)
    assert np.bincount(examples.labels, minlength=43).min() >= 20
    assert len(set(examples.groups["track"])) > 43


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Portraits of M and F in 1929, 1930 and 2013; as in the archive 186 x 171 grey pixels."""
    for c, sex in enumerate("MF"):
        for year, n in ((1929, 1), (1930, 4), (2013, 5)):
            for i in range(n):
                shade = np.full((186, 171), 100 * c + year % 100 + i, dtype=np.uint8)
                write_picture(tmp_path / FACES / sex / f"{year}_Ohio_Dayton_Central_0-{i}.png", shade)
    return tmp_path


def test_yearbook(faces: Path) -> None:
    examples = load(faces, "yearbook")
    assert examples.inputs.shape == (18, 1, 32, 32)
    assert (examples.classes, examples.boundary) == (2, None)
    assert examples.targets.tolist() == [0] * 9 + [1] * 9
    assert list(examples.groups["year"]) == (["1930"] * 4 + ["2013"] * 5) * 2
    assert examples.inputs[9, 0, 3, 3] == 130


def test_one_client_a_year(faces: Path) -> None:
    section = {"source": "yearbook", "partition": {"rule": "natural", "min_examples": 5}, "test": 0.4}
    federation = build_federation(section, seed=0, data_dir=faces)
    assert federation.names == ("1930", "2013")
    assert federation.test.n.tolist() == [3, 4]


def test_yearbook_without_its_outer_folder(faces: Path) -> None:
    for sex in "MF":
        (faces / FACES / sex).rename(faces / "yearbook" / sex)
    (faces / FACES).rmdir()
    assert len(load(faces, "yearbook")) == 18


def test_a_portrait_without_a_year(faces: Path) -> None:
    (faces / FACES / "F" / "2013_Ohio_Dayton_Central_0-1.png").rename(faces / FACES / "F" / "portrait.png")
    with pytest.raises(CoterieError, match=r"F/portrait.png does not begin with a year"):
        load(faces, "yearbook")


def test_no_portraits(tmp_path: Path) -> None:
    (tmp_path / FACES / "M").mkdir(parents=True)
    with pytest.raises(CoterieError, match=r"one folder for each of 2 classes, but .* holds M \(1 folders in all\)"):
        load(tmp_path, "yearbook")
