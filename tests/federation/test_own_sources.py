"""Data of a user's own in other shapes than one table: files, archives, pictures, functions, arrays."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import HOSPITALS, patients
from PIL import Image
from torch.utils.data import TensorDataset

from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.portrait import portrait
from coterie.federation.schema import Schema


def build(section: Mapping[str, Any], folder: Path) -> Federation:
    return build_federation(section, seed=0, data_dir=folder)


def clients(n: int = 10, classes: int = 2) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0)
    return {name: (draw.normal(size=(n, 3)), np.arange(n) % classes) for name in HOSPITALS}


def write_pfllib(root: Path, n: int = 10) -> None:
    """As PFLlib writes its clients."""
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        for i in range(3):
            draw = np.random.default_rng(i)
            x = draw.normal(size=(n, 1, 4, 4)).astype(np.float32)
            with (root / part / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": x, "y": np.arange(n) % 2})


def rows_of(inputs: torch.Tensor) -> list[list[float]]:
    return sorted(inputs.flatten(1).tolist())


def test_files_are_clients(tmp_path: Path) -> None:
    table, folder = patients(), tmp_path / "wards"
    folder.mkdir()
    for name, rows in table.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(folder / f"{name}.csv.gz", index=False)
    section = {"source": "files", "path": "wards", "target": "sick", "ignore": ["stay", "patient", "day"]}
    federation = build(section, tmp_path)
    assert federation.names == HOSPITALS
    assert federation.feature_shape == (4,)
    assert torch.equal(build({**section, "path": "wards/*.gz"}, tmp_path).train.inputs, federation.train.inputs)
    assert len(federation.source["files"]) == 3
    (folder / "west.csv").write_text("age\n1\n")
    with pytest.raises(CoterieError, match=r"west.csv and .*west.csv.gz would be one client, 'west'"):
        build(section, tmp_path)
    (folder / "west.csv.gz").unlink()
    with pytest.raises(CoterieError, match=r"west.csv has no column 'day', which .*north.csv.gz has"):
        build(section, tmp_path)
    with pytest.raises(CoterieError, match=r"files .csv, .csv.gz, .parquet, but wards/\*.txt names none"):
        build({**section, "path": "wards/*.txt"}, tmp_path)


def test_endings_in_capitals_are_the_same_endings(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": range(10), "y": [0, 1] * 5})
    table.to_csv(tmp_path / "north.csv", index=False)
    table.to_csv(tmp_path / "south.CSV.GZ", index=False, compression="gzip")
    table.to_parquet(tmp_path / "west.PARQUET")
    section = {"source": "files", "path": str(tmp_path), "target": "y"}
    federation = build(section, tmp_path)
    assert federation.names == ("north", "south", "west")
    assert federation.train.n.tolist() == [6] * 3
    (tmp_path / "east.Csv").write_text("x,y\n1,0\n2\n")
    with pytest.raises(CoterieError, match=r"east.Csv, line 3 has 1 cells where 2 are expected"):
        build(section, tmp_path)
    (tmp_path / "east.Csv").rename(tmp_path / "north.CSV")
    with pytest.raises(CoterieError, match=r"north.CSV and .*north.csv would be one client, 'north'"):
        build(section, tmp_path)


def test_archives_whose_endings_are_in_capitals_are_clients_too(tmp_path: Path) -> None:
    for name, (x, y) in clients().items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    (tmp_path / "west.npz").rename(tmp_path / "west.NPZ")
    section = {"source": "npz", "path": str(tmp_path)}
    assert build(section, tmp_path).names == HOSPITALS
    (tmp_path / "west.npz").write_bytes((tmp_path / "north.npz").read_bytes())
    with pytest.raises(CoterieError, match=r"west.NPZ and .*west.npz would be one client, 'west': rename or remove"):
        build(section, tmp_path)


def test_a_mistake_in_one_of_the_files_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,0\n2,1\n" * 5)
    (tmp_path / "b.csv").write_text("x,y\n1,0\n1,1\n,1\n")
    with pytest.raises(CoterieError, match=r"b.csv, line 4: the column 'x' has no value"):
        build({"source": "files", "path": str(tmp_path / "*.csv"), "target": "y"}, tmp_path)


def test_what_pfllib_wrote_runs_unchanged(tmp_path: Path) -> None:
    write_pfllib(tmp_path / "mine")
    federation = build({"source": "npz", "path": "mine"}, tmp_path)
    assert federation.names == ("0", "1", "2")
    assert federation.feature_shape == (1, 4, 4)
    assert federation.train.n.tolist() == [8] * 3
    assert federation.validation.n.tolist() == [2] * 3  # of the training archive
    assert federation.test.n.tolist() == [10] * 3
    with np.load(tmp_path / "mine/test/1.npz", allow_pickle=True) as archive:
        written = archive["data"].item()["x"]
    assert rows_of(federation.test.client(1)[0]) == rows_of(torch.from_numpy(written))
    merged = build({"source": "npz", "path": "mine", "test": 0.5}, tmp_path)
    assert merged.test.n.tolist() == [10] * 3
    assert rows_of(merged.test.client(1)[0]) != rows_of(torch.from_numpy(written))
    write_pfllib(tmp_path / "more", n=4)
    (tmp_path / "mine/rawdata").mkdir()  # PFLlib keeps what it downloads there
    (tmp_path / "more/test").rename(tmp_path / "mine/val")
    own = build({"source": "npz", "path": "mine"}, tmp_path)
    assert [split.n.tolist() for split in (own.train, own.validation, own.test)] == [[10] * 3, [4] * 3, [10] * 3]


def test_plain_arrays_without_a_test_folder(tmp_path: Path) -> None:
    for name, (x, y) in clients().items():
        np.savez(tmp_path / f"{name}.npz", x=(10 * x).astype(np.uint8), y=y)
    federation = build({"source": "npz", "path": str(tmp_path), "classes": 3}, tmp_path)
    assert federation.names == HOSPITALS
    assert (federation.classes, federation.train.scale) == (3, 1 / 255)
    assert federation.test.n.tolist() == [2] * 3


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


def test_bad_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pfllib(tmp_path)
    path, section = tmp_path / "train/1.npz", {"source": "npz", "path": str(tmp_path)}
    whole = path.read_bytes()
    np.savez(path, data=np.array({"x": Evil()}, dtype=object))
    with pytest.raises(CoterieError, match=r"train/1.npz is damaged, or no archive .* \(it asks for builtins.print\)"):
        build(section, tmp_path)
    assert "run" not in capsys.readouterr().out
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", header.getvalue() + pickle.dumps([1, 2]))
    with pytest.raises(CoterieError, match=r"1.npz holds list where the inputs x and the targets y are expected"):
        build(section, tmp_path)
    path.write_bytes(whole[:100])
    with pytest.raises(CoterieError, match=r"1.npz is damaged"):
        build(section, tmp_path)
    np.savez(path, x=np.ones((3, 2)), y=np.ones(4, dtype=int))
    with pytest.raises(CoterieError, match=r"1.npz: there must be one target for each input"):
        build(section, tmp_path)
    path.unlink()
    with pytest.raises(CoterieError, match=r"train has no 1.npz, though another folder has"):
        build(section, tmp_path)


@pytest.mark.parametrize("official", [True, False])
def test_pictures(tmp_path: Path, official: bool) -> None:
    for part in ("train", "test") if official else ("",):
        for client in ("ann", "bob"):
            for colour, name in ((10, "dark"), (250, "light")):
                folder = tmp_path / part / client / name
                folder.mkdir(parents=True)
                for i in range(5):
                    Image.new("RGB", (6, 4), (colour, i, 0)).save(folder / f"{i}.png")
    federation = build({"source": "folder", "path": str(tmp_path), "size": 8}, tmp_path)
    assert federation.names == ("ann", "bob")
    assert federation.feature_shape == (3, 8, 8)
    assert federation.test.n.tolist() == ([10, 10] if official else [2, 2])
    x, y = federation.train.client(0)
    assert torch.equal(x[:, 0, 0, 0] > 0.5, y == 1)
    assert portrait(federation)["labels"] == ["dark", "light"]
    assert Schema.of(federation).label_names == ["dark", "light"]
    grey = build({"source": "folder", "path": str(tmp_path), "size": 8, "grey": True}, tmp_path)
    assert grey.feature_shape == (1, 8, 8)


@pytest.mark.parametrize("word", ["val", "Valid", "dev", "validation"])
def test_pictures_of_an_own_validation(tmp_path: Path, word: str) -> None:
    for part, n in (("training", 6), (word, 3), ("test", 2)):
        for colour, name in ((10, "dark"), (250, "light")):
            (tmp_path / part / "ann" / name).mkdir(parents=True)
            for i in range(n):
                Image.new("L", (4, 4), colour).save(tmp_path / part / "ann" / name / f"{i}.png")
    section = {"source": "folder", "path": str(tmp_path), "size": 4, "grey": True}
    federation = build(section, tmp_path)
    assert [split.n.tolist() for split in (federation.train, federation.validation, federation.test)] == [
        [12],
        [6],
        [4],
    ]
    (tmp_path / ".cache").mkdir()
    build(section, tmp_path)  # what programs hide there is no part of it
    (tmp_path / "train").mkdir()
    with pytest.raises(CoterieError, match=r"has the folders train and training, both for train: merge them"):
        build(section, tmp_path)
    (tmp_path / "train").rename(tmp_path / "more")
    with pytest.raises(CoterieError, match=r"more is beside the folders of an official split"):
        build(section, tmp_path)


@pytest.mark.parametrize(("parts", "missing"), [(("train", "val"), "test"), (("test",), "train")])
def test_pictures_of_half_a_split_are_no_clients(tmp_path: Path, parts: tuple[str, ...], missing: str) -> None:
    for part in parts:
        for colour, name in ((10, "dark"), (250, "light")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(5):
                Image.new("L", (4, 4), colour).save(tmp_path / part / name / f"{i}.png")
    section = {"source": "folder", "path": str(tmp_path), "size": 4, "grey": True}
    with pytest.raises(CoterieError, match=rf"holds {' and '.join(parts)}, .*, but none for {missing}: add it, or"):
        build(section, tmp_path)
    for part in parts:  # under another name it is a client
        (tmp_path / part).rename(tmp_path / f"ward-{part}")
    assert build(section, tmp_path).names == tuple(f"ward-{part}" for part in parts)


@pytest.mark.parametrize("values", [np.arange(16, dtype=np.uint16) * 4000, np.arange(16, dtype=np.int32) * 9])
def test_pictures_of_more_than_8_bits_are_not_cut(tmp_path: Path, values: np.ndarray) -> None:
    for name in ("dark", "light"):
        (tmp_path / "ann" / name).mkdir(parents=True)
        Image.fromarray(values.reshape(4, 4)).save(tmp_path / "ann" / name / "0.tif")
    with pytest.raises(CoterieError, match=r"0.tif has more than 8 bits a grey level: bring its levels to 0 to 255"):
        build({"source": "folder", "path": str(tmp_path), "size": 4}, tmp_path)


def test_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "ann" / "dark").mkdir(parents=True)
    with pytest.raises(CoterieError, match=r"ann/dark holds no picture, but .* holds nothing"):
        build({"source": "folder", "path": str(tmp_path), "size": 8}, tmp_path)


MODULE = """
import numpy as np, pandas as pd, torch
from coterie.federation import Federation
def arrays(seed):
    draw = np.random.default_rng(seed)
    return {"ann": (draw.normal(size=(10, 2)), np.arange(10) % 2), "bob": (draw.normal(size=(10, 2)), np.arange(10) % 2)}
def ready(seed):
    return Federation.from_arrays(arrays(seed), validation=0, test=0.5)
def datasets(seed):
    return [torch.utils.data.TensorDataset(torch.ones(10, 2), torch.arange(10) % 2)] * 2
def table(seed):
    wards = pd.DataFrame({"ward": ["ann", "bob"] * 10, "age": range(20), "sick": ["no", "no", "yes", "yes"] * 5})
    return Federation.from_frame(wards, client="ward", target="sick")
def single(seed):
    return {"ann": (np.ones((10, 2)), np.zeros(10, dtype=int))}
def nothing(seed):
    return None
def broken(seed):
    raise ValueError("no such ward")
"""


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_wards.py").write_text(MODULE)

    def given(function: str) -> Federation:
        return build({"source": "python", "function": f"my_wards:{function}"}, tmp_path)

    assert given("arrays").names == ("ann", "bob")
    assert given("arrays").test.n.tolist() == [2, 2]
    ready = given("ready")  # as it is: without validation data
    assert [ready.split(part).n.tolist() for part in ("train", "validation", "test")] == [[5, 5], [0, 0], [5, 5]]  # type: ignore[arg-type]
    assert given("datasets").names == ("0", "1")
    of_table = Schema.of(given("table"))
    assert of_table.label_names == ["no", "yes"]
    assert [feature.name for feature in of_table.features or []] == ["age"]
    for function, message in (
        ("single", "'python' has a single class"),
        ("nothing", "gave a NoneType where a Federation, or a mapping from clients"),
        ("broken", "federation.function my_wards:broken failed: no such ward"),
        ("absent", "federation.function 'my_wards:absent' cannot be imported"),
    ):
        with pytest.raises(CoterieError, match=message):
            given(function)
    with pytest.raises(CoterieError, match=r"federation.function: 'arrays' is not of the form module:function"):
        build({"source": "python", "function": "arrays"}, tmp_path)


def test_arrays() -> None:
    federation = Federation.from_arrays(clients(), validation=0.1, test=3, seed=5)
    assert federation.names == HOSPITALS
    assert [federation.split(part).n.tolist() for part in ("train", "validation", "test")] == [
        [6] * 3,
        [1] * 3,
        [3] * 3,
    ]  # type: ignore[arg-type]
    again = Federation.from_arrays(clients(), validation=0.1, test=3, seed=5)
    assert torch.equal(again.train.client(1)[0], federation.train.client(1)[0])
    parts = {name: {"train": data, "test": data} for name, data in clients().items()}
    assert Federation.from_arrays(parts, validation=0.2).train.n.tolist() == [8] * 3
    regression = Federation.from_arrays([(np.ones((9, 2)), np.ones(9))] * 2)
    assert (regression.task, regression.classes) == ("regression", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"west": (np.ones((10, 2)), np.arange(10) % 2)}, r"Client 'west' has inputs of the kind float32 \(2,\), but client 'north' of float32 \(3,\)"),
        ({"west": (np.ones((10, 3)), np.ones(10))}, r"Client 'west' has targets of the kind float32 \(1,\)"),
        ({"west": (np.ones((0, 2)), np.ones(0))}, "has no examples: give it some, or leave it out"),
        ({"": (np.ones((9, 2)), np.ones(9))}, "client '' has no name: rename it"),
        ({0: (np.ones((9, 2)), np.ones(9)), "0": (np.ones((9, 2)), np.ones(9))}, "client '0' is there twice"),
        ({"west": (np.ones((10, 3)) * 1j, np.ones(10))}, "must be real numbers"),
        ({"west": (np.ones((10, 3)), np.ones((10, 2), int))}, "must be one class, not several"),
        ({"west": (np.ones((10, 3)), np.ones(9))}, "from_arrays, client 'west': there must be one target for each input"),
        ({"west": {"train": (np.ones((10, 3)), np.ones(10))}}, "client 'west' has train: give train, test and maybe validation"),
        ({"west": {part: (np.ones((4, 3)), np.arange(4) % 2) for part in ("train", "test")}}, "some clients come with a test part and some without"),
        ({"west": (np.ones((1, 3)), np.ones(1, dtype=int))}, "Client 'west' has 1 example, which is too few"),
        ({"west": (np.full((10, 3), np.nan), np.arange(10) % 2)}, "Client 'west' has NaN or infinity"),
        ({"west": (np.ones((10, 3)), np.array(["a"] * 10))}, "client 'west': inputs and targets must be arrays of numbers"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_arrays(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Federation.from_arrays({**clients(), **change})


def test_labels_that_are_codes() -> None:
    with pytest.raises(CoterieError, match="has the label 50,000, which would make 50,001 classes of 60 examples"):
        Federation.from_arrays({"west": (np.ones((60, 2)), np.arange(60) % 2 * 50_000)})


def test_amounts_and_times_that_are_none() -> None:
    with pytest.raises(CoterieError, match="test is -1: give a number of examples"):
        Federation.from_arrays(clients(), test=-1)
    times = {name: [math.nan] * 10 for name in clients()}
    with pytest.raises(CoterieError, match="lack a value: every example needs one"):
        Federation.from_arrays(clients(), order=times)


def test_datasets() -> None:
    given = {name: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in clients().items()}
    one, other = Federation.from_datasets(given, seed=1), Federation.from_arrays(clients(), seed=1)
    assert torch.equal(one.test.client(2)[0], other.test.client(2)[0])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], r"the Dataset has no examples: give it some, or leave it out"),
        ([(torch.ones(2), 0), (torch.ones(3), 1)], r"the input of example 1 has the shape \(3,\), but that of example 0 \(2,\)"),
        ([(torch.ones(2), 0), (torch.ones(2), [0, 1])], r"the target of example 1 has the shape \(2,\), but that of example 0 \(\)"),
        ([(Image.new("L", (4, 4)), 0)], r"the input of example 0 is of the type Image: make it a tensor, an array or a number"),
        ([(torch.ones(2), "sick")], r"the target of example 0 is of the type str: make it"),
        ([(torch.ones(2), 0, 7)], r"example 0 has 3 parts: it must be a pair, its input and its target"),
        ([{"x": torch.ones(2), "y": 0}], r"example 0 is of the type dict: it must be a pair"),
    ],
)  # fmt: skip
def test_wrong_datasets(examples: list[Any], message: str) -> None:
    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(examples)

        def __getitem__(self, i: int) -> Any:
            return examples[i]

    with pytest.raises(CoterieError, match=f"from_datasets, client 'west': {message}"):
        Federation.from_datasets({"west": Own()})


def test_a_data_frame() -> None:
    frame = patients().drop(columns=["stay", "patient", "day"])
    federation = Federation.from_frame(frame, client="hospital", target="sick", test=5)
    assert federation.names == HOSPITALS
    assert federation.test.n.tolist() == [5] * 3
    assert federation.source["schema"]["target"] == "sick"
    with pytest.raises(CoterieError, match=r"the data frame has no column 'sik' .*did you mean 'sick'"):
        Federation.from_frame(frame, client="hospital", target="sik")
