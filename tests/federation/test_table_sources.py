"""Tables, cells and curves: spectra, heart disease, schools, mine fields, the sine toy."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.datasets import find_source
from coterie.federation.examples import Examples

NATURAL: dict[str, Any] = {"partition": {"rule": "natural"}}


def load(root: Path, source: str) -> Examples:
    return find_source(source).load(root)


LEAVES = """Species_Code,Common_Name,C_N_mass,N_g_m2,Wave_500,Wave_501
GLMA4,soybean,7.5,1.25,10,50
GLMA4,soybean,7.5,1.5,20,40
CUPE,field pumpkin,7.5,0.75,5.5,60
"""
WHEAT = """gid,trial,YLD_E1,YLD_E2,R_wl392,R_wl394
6569128,1,1.94,3.46,38.5,1500
6688880,12,2.15,3.54,42,900
"""


@pytest.mark.parametrize("folder", ["agriculture", "leaf-spectra"])
@pytest.mark.parametrize("zipped", [True, False])
def test_leaves(tmp_path: Path, folder: str, zipped: bool) -> None:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / ("ely_plsr_data.csv.gz" if zipped else "ely_plsr_data.csv")
    path.write_bytes(gzip.compress(LEAVES.encode()) if zipped else LEAVES.encode())
    examples = load(tmp_path, "agriculture")
    assert (examples.task, examples.classes, examples.boundary) == ("regression", 1, None)
    assert torch.allclose(examples.inputs, torch.tensor([[0.1, 0.5], [0.2, 0.4], [0.055, 0.6]]))
    assert examples.targets.tolist() == [[1.25], [1.5], [0.75]]
    assert examples.groups["species"] == ["soybean", "soybean", "field-pumpkin"]


def test_wheat(tmp_path: Path) -> None:
    (tmp_path / "wheat").mkdir()
    (tmp_path / "wheat/wheatHTP_E1.csv").write_text(WHEAT)
    examples = load(tmp_path, "wheat")
    assert torch.allclose(examples.inputs, torch.tensor([[0.0385, 1.5], [0.042, 0.9]]))
    assert torch.allclose(examples.targets, torch.tensor([[1.94], [2.15]]))
    assert examples.groups["trial"] == ["trial-01", "trial-12"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LEAVES.replace("N_g_m2", "N"), "has no column 'N_g_m2'; its columns are Species_Code, Common_Name"),
        (LEAVES.replace("Wave", "wave"), "has no column of reflectance"),
        (LEAVES.replace("20,40", "20,forty"), "line 3: 'forty' in the column 'Wave_501' is no finite number"),
        (LEAVES.replace("20,40", "20,"), "line 3: '' in the column 'Wave_501' is no finite number"),
        (LEAVES.replace("1.5,", "nan,"), "line 3: 'nan' in the column 'N_g_m2'"),
        (LEAVES.splitlines()[0], "has a header and no rows"),
        ("", "is truncated, damaged or no table"),
        (LEAVES + "1,2,3,4,5,6,7,8,9\n", "is truncated, damaged or no table"),
    ],
)
def test_wrong_leaves(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "agriculture").mkdir()
    (tmp_path / "agriculture/ely_plsr_data.csv").write_text(content)
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "agriculture")


def test_truncated_leaves(tmp_path: Path) -> None:
    (tmp_path / "agriculture").mkdir()
    (tmp_path / "agriculture/ely_plsr_data.csv.gz").write_bytes(gzip.compress(LEAVES.encode() * 50)[:-40])
    with pytest.raises(CoterieError, match=r"csv.gz is truncated, damaged or no table .*Download or copy it again"):
        load(tmp_path, "agriculture")


def test_no_leaves(tmp_path: Path) -> None:
    with pytest.raises(
        CoterieError, match=r"'agriculture' needs the table ely_plsr_data.csv .*agriculture does not exist"
    ):
        load(tmp_path, "agriculture")


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "file", "shape", "clients"),
    [("agriculture", "ely_plsr_data", (178, 1901), 8), ("wheat", "wheatHTP_E1", (776, 250), 28)],
)
def test_real_spectra(
    real_file: Callable[[str], Path], source: str, file: str, shape: tuple[int, int], clients: int
) -> None:
    root = real_file(f"leaf-spectra/{file}.csv.gz")
    examples = load(root, source)
    assert examples.inputs.shape == shape
    # a ridge regression on every second row finds the published relation in the others
    x = examples.inputs.double() - examples.inputs.double().mean(0)
    y = examples.targets.double() - examples.targets.double().mean(0)
    gram = x[::2] @ x[::2].T
    dual = torch.linalg.solve(gram + 1e-3 * torch.eye(len(gram), dtype=x.dtype), y[::2])
    predicted = x[1::2] @ (x[::2].T @ dual)
    assert float(torch.corrcoef(torch.cat([predicted, y[1::2]], dim=1).T)[0, 1]) > 0.5
    federation = build_federation({"source": source, **NATURAL}, seed=0, data_dir=root)
    assert federation.k == clients


# the first line of Cleveland as published, one without most findings, and one with everything else
PATIENTS = {
    "cleveland": "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
    "40,0,4,130,250,0,0,140,0,0,1,0,3,4\n" * 6,
    "hungarian": "28,1,2,130,132,0,2,185,0,0,?,?,?,0\n" * 12,
    "switzerland": "32,1,1,95,0,?,0,127,0,.7,1,?,?,1\n" * 12,
    "va": "63,1,4,0,260,0,1,112,1,3,2,?,?,2\n" * 12,
}


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    folder = tmp_path / "heart-disease"
    folder.mkdir()
    for hospital, lines in PATIENTS.items():
        (folder / f"processed.{hospital}.data").write_text(lines)
    return tmp_path


def test_heart_disease(wards: Path) -> None:
    examples = load(wards, "heart-disease")
    assert examples.inputs.shape == (48, 32)
    assert examples.classes == 2
    assert [int(examples.targets[i]) for i in (0, 1, 12, 24, 36)] == [0, 1, 0, 1, 1]
    first = [1.3, 1, 1, 0, 0, 0, 0.75, -0.34, 1, 0, 0, 1, 0.5, 0, 2.3, 0, 0, 1, 0, 0, 1, 0]
    assert torch.allclose(examples.inputs[0], torch.tensor(first + [0.0] * 10))
    # Hungary lacks slope, ca and thal; they are 0 in all their columns, and marked in the last three
    assert examples.inputs[12, 15:22].tolist() == [0] * 7
    assert examples.inputs[12, 22:].tolist() == [0] * 7 + [1] * 3
    # cholesterol 0 in Switzerland and pressure 0 in VA were not taken
    assert examples.inputs[24, [7, 23]].tolist() == [0, 1]
    assert examples.inputs[36, [6, 22]].tolist() == [0, 1]


def test_one_client_a_hospital(wards: Path) -> None:
    federation = build_federation({"source": "heart-disease", **NATURAL}, seed=0, data_dir=wards)
    assert federation.names == ("cleveland", "hungarian", "switzerland", "va")


def test_no_value_of_one_hospital_depends_on_another(wards: Path) -> None:
    before = load(wards, "heart-disease")
    (wards / "heart-disease/processed.va.data").write_text("99,0,1,200,900,1,2,60,1,6,3,3,7,3\n")
    assert torch.equal(load(wards, "heart-disease").inputs[:36], before.inputs[:36])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("28,1,2", "28,1,5", "hungarian.data, line 1: cp is 5, which is none of 1, 2, 3, 4"),
        ("28,1,2", "?,1,2", "hungarian.data, line 1 lacks age, which every hospital has"),
        ("28,1,2", "28,2", "hungarian.data, line 1 has 13 values where 14 are expected"),
        ("28,1,2", "old,1,2", "hungarian.data, line 1 holds text where a number or . is expected"),
        ("?,?,?,0", "?,?,?,5", r"hungarian.data, line 1: the diagnosis is 5, outside the classes 0 \.\. 4"),
        ("?,?,?,0", "?,?,?,?", "the diagnosis is nan"),
        (PATIENTS["hungarian"], "", "hungarian.data is empty"),
    ],
)
def test_wrong_patients(wards: Path, old: str, new: str, message: str) -> None:
    path = wards / "heart-disease/processed.hungarian.data"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CoterieError, match=message):
        load(wards, "heart-disease")


def test_a_folder_in_place_of_a_hospital(wards: Path) -> None:
    path = wards / "heart-disease/processed.va.data"
    path.unlink()
    path.mkdir()
    with pytest.raises(CoterieError, match=r"processed.va.data cannot be read: Is a directory"):
        load(wards, "heart-disease")


def test_a_hospital_is_missing(wards: Path) -> None:
    (wards / "heart-disease/processed.va.data").unlink()
    with pytest.raises(
        CoterieError, match=r"needs the file processed.va.data, one of 4, but .* holds processed.clevel"
    ):
        load(wards, "heart-disease")


@pytest.mark.data
def test_real_patients(real_file: Callable[[str], Path]) -> None:
    examples = load(real_file("heart-disease/processed.va.data"), "heart-disease")
    healthy = [
        sum(int(t) == 0 for t, of in zip(examples.targets, examples.groups["hospital"], strict=True) if of == hospital)
        for hospital in ("cleveland", "hungarian", "switzerland", "va")
    ]
    assert healthy == [164, 188, 8, 51]
    assert float(examples.inputs.abs().max()) < 10


def cells(parts: list[np.ndarray]) -> np.ndarray:
    column = np.empty((1, len(parts)), dtype=object)
    for i, part in enumerate(parts):
        column[0, i] = part
    return column


def write_school(root: Path, **changes: Any) -> Path:
    x = [np.ones((n, 28), dtype=np.uint8) * np.array([1, 0, 0, 50, 20] + [1] * 23, dtype=np.uint8) for n in (12, 10)]
    y = [np.arange(n, dtype=np.uint8)[:, None] for n in (12, 10)]
    path = root / "school" / "school.mat"
    path.parent.mkdir(parents=True)
    content = {"X": cells(x), "Y": cells(y)} | changes
    scipy.io.savemat(path, {name: value for name, value in content.items() if value is not None})
    return path


def test_schools(tmp_path: Path) -> None:
    write_school(tmp_path)
    examples = load(tmp_path, "school")
    assert examples.inputs.shape == (22, 28)
    assert torch.allclose(examples.inputs[0, :6], torch.tensor([1, 0, 0, 0.5, 0.2, 1]))
    assert examples.targets[12:15].tolist() == [[0], [1], [2]]
    assert examples.groups["school"] == ["school-1"] * 12 + ["school-2"] * 10
    assert examples.task == "regression"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Y": None}, "has no cells 'Y'"),
        ({"Y": np.ones((12, 1))}, "has no cells 'Y'"),
        ({"Y": cells([np.ones((12, 1))] * 3)}, "has 2 cells 'X' but 3 cells 'Y'"),
        ({"Y": cells([np.ones((12, 1))] * 2)}, r"cell 2 of 'Y' is .* \(12, 1\) where numbers \(10, 1\)"),
        (
            {"X": cells([np.ones((12, 28)), np.ones((10, 9))])},
            r"cell 2 of 'X' is .* \(10, 9\) where numbers \(10, 28\)",
        ),
    ],
)
def test_wrong_schools(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_school(tmp_path, **changes)
    with pytest.raises(CoterieError, match=message):
        load(tmp_path, "school")


@pytest.mark.parametrize("cut", [lambda b: b[:-50], lambda b: b[:140], lambda b: b"<html>gone</html>", lambda b: b""])
def test_truncated_schools(tmp_path: Path, cut: Callable[[bytes], bytes]) -> None:
    path = write_school(tmp_path)
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(CoterieError, match=r"school.mat is truncated, damaged or no Matlab file|has no cells"):
        load(tmp_path, "school")


def test_mine_fields(tmp_path: Path) -> None:
    (tmp_path / "landmine").mkdir()
    x, y = [np.ones((n, 9)) for n in (12, 10)], [np.ones((n, 1), dtype=np.uint8) for n in (12, 10)]
    path = tmp_path / "landmine/LandmineData.mat"
    scipy.io.savemat(path, {"feature": cells(x), "label": cells(y)})
    federation = build_federation({"source": "landmine", **NATURAL}, seed=0, data_dir=tmp_path)
    assert federation.names == ("field-1", "field-2")
    assert federation.classes == 2
    scipy.io.savemat(path, {"feature": cells(x), "label": cells([y[0], 2 * y[1]])})
    with pytest.raises(CoterieError, match=r"holds the label 2, outside the classes 0 \.\. 1"):
        load(tmp_path, "landmine")


@pytest.mark.data
def test_real_cells(real_file: Callable[[str], Path]) -> None:
    root = real_file("mtl-silos/school.mat")
    schools = build_federation({"source": "school", **NATURAL}, seed=0, data_dir=root)
    assert schools.k == 139
    assert sum(schools.split(split).total for split in ("train", "validation", "test")) == 15_362
    fields = build_federation({"source": "landmine", **NATURAL}, seed=0, data_dir=root)
    assert fields.k == 29
    assert sum(fields.class_counts(split)[:, 1].sum() for split in ("train", "validation", "test")) == 904


def test_sine_is_drawn_from_the_seed() -> None:
    one, same, other = (build_federation({"source": "sine", **NATURAL}, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.train.inputs, same.train.inputs)
    assert not torch.equal(one.train.inputs, other.train.inputs)
    fixed = build_federation({"source": "sine", **NATURAL, "seed": 1}, seed=5)
    assert torch.equal(one.train.inputs, fixed.train.inputs)


def test_clients_of_the_sine_own_consecutive_intervals() -> None:
    section = {"source": "sine", **NATURAL, "train": 20, "validation": 20, "test": 60}
    federation = build_federation(section, seed=0)
    assert federation.k == 8
    assert federation.test.n.tolist() == [60] * 8
    for i in range(8):
        x, y = federation.test.client(i)
        assert float(x.min()) >= i * math.pi / 4
        assert float(x.max()) < (i + 1) * math.pi / 4
        assert float((y - x.sin()).std()) == pytest.approx(0.1, abs=0.04)
        assert abs(float((y - x.sin()).mean())) < 0.05
