"""The source ``huggingface``, with stand-ins for the packages of the extra ``hf``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.datasets.huggingface import HuggingFaceSource, _of_inputs
from coterie.federation.federation import SPLITS
from coterie.federation.places import Origin


class Dataset:
    """As much of a dataset as the source uses."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": SimpleNamespace(names=["no", "yes", "maybe"])}

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset({name: self.columns[name] for name in names})

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(self.columns)

    def rows(self, step: int, start: int) -> Dataset:
        return Dataset({name: values[start::step] for name, values in self.columns.items()})


class IidPartitioner:
    dataset: Dataset

    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions

    def load_partition(self, i: int) -> Dataset:
        return self.dataset.rows(self.num_partitions, i)


def joined(parts: list[Dataset]) -> Dataset:
    return Dataset({name: [value for part in parts for value in part[name]] for name in parts[0].column_names})


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    rows = Dataset(
        {
            "who": ["ann", "bob", "cid"] * 10,
            "x": list(range(30)),
            "label": [i % 2 for i in range(30)],
            "patient": [f"p{i // 6}" for i in range(30)],
            "day": [f"2024-05-{30 - i:02}" for i in range(30)],
            "use": [("train", "train", "validation", "test")[i // 3 % 4] for i in range(30)],
            "picture": [Image.new("RGB", (5, 4), (i, 0, 0)) for i in range(30)],
        }
    )
    datasets, partitioner = ModuleType("datasets"), ModuleType("flwr_datasets.partitioner")
    vars(datasets).update(load_from_disk=lambda path: {"train": rows}, concatenate_datasets=joined)
    vars(partitioner).update(IidPartitioner=IidPartitioner)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", partitioner)


def built(folder: Path, **keys: Any) -> Federation:
    ignore = {} if "inputs" in keys else {"ignore": ["picture", "patient", "day", "use"]}
    section = {"source": "huggingface", "dataset": "mine", "target": "label", **ignore, **keys}
    return build_federation(section, seed=0, data_dir=folder)


def test_a_column_names_the_clients(tmp_path: Path) -> None:
    federation = built(tmp_path, client="who")
    assert federation.names == ("ann", "bob", "cid")
    assert (federation.feature_shape, federation.classes) == ((1,), 3)
    pictures = built(tmp_path, client="who", inputs="picture")
    assert (pictures.feature_shape, pictures.classes) == ((3, 4, 5), 3)
    reds = 255 * pictures.train.client(1)[0][:, 0, 0, 0]
    assert {round(float(red)) % 3 for red in reds} == {1}


def test_a_partitioner_makes_the_clients(tmp_path: Path) -> None:
    federation = built(
        tmp_path, partitioner="IidPartitioner", partitioner_options={"num_partitions": 5}, inputs="picture"
    )
    assert federation.k == 5
    assert sum(federation.split(part).total for part in ("train", "validation", "test")) == 30  # type: ignore[arg-type]


def pictures_of(federation: Federation) -> dict[str, set[int]]:
    """The numbers of the pictures in each split."""
    reds = {part: (federation.split(part).inputs[:, 0, 0, 0], federation.split(part).index) for part in SPLITS}
    return {part: {int(red) for red in red[index]} for part, (red, index) in reds.items() if index is not None}


def test_pictures_are_split_as_columns_say(tmp_path: Path) -> None:
    """By patient, by time, or as the rows themselves say, each row being known by the colour of its picture."""
    whole = {"client": "who", "inputs": "picture"}
    by_patient = pictures_of(built(tmp_path, **whole, group="patient"))
    patients = [{row // 6 for row in rows} for rows in by_patient.values()]
    assert [len(of) for of in patients] == [3, 1, 1]
    assert len(set.union(*patients)) == 5, "no patient is in two splits"
    latest = pictures_of(built(tmp_path, **whole, time="day"))["test"]
    assert latest == set(range(6)), "each client's two latest days"
    marked = pictures_of(built(tmp_path, **whole, split="use"))
    uses = ("train", "train", "validation", "test")
    for part in SPLITS:
        assert marked[part] == {row for row in range(30) if uses[row // 3 % 4] == part}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("labels", ["0", "1"]),
        ("task", "regression"),
        ("features", ["x"]),
        ("categorical", ["x"]),
        ("ignore", ["x"]),
        ("missing", "mark"),
        ("preprocessing", "none"),
    ],
)
def test_options_of_features_are_refused_beside_inputs(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=f"{key} is for columns of a table, and has no effect beside inputs: leave"):
        built(tmp_path, client="who", inputs="picture", **{key: value})
    federation = built(tmp_path, client="who", inputs="picture")
    section = {key: value for key, value in federation.source.items() if key not in ("sha256", "seed")}
    assert build_federation(section, seed=0, data_dir=tmp_path).digest == federation.digest, "what is recorded is fine"


def test_the_checksum_covers_columns_that_split(tmp_path: Path) -> None:
    before = built(tmp_path, client="who", inputs="picture", group="patient").source["sha256"]
    assert built(tmp_path, client="who", inputs="picture", group="patient").source["sha256"] == before
    columns = sys.modules["datasets"].load_from_disk("")["train"].columns
    columns["patient"] = [f"p{i // 3}" for i in range(30)]
    assert built(tmp_path, client="who", inputs="picture", group="patient").source["sha256"] != before


class Name(str):
    """A name that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_clients_are_sorted_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are not looked for among all rows, client by client."""
    monkeypatch.setattr(Name, "compared", 0)
    names = [f"c{row % 50:02}" for row in range(500)]
    table = pd.DataFrame({"label": [row // 50 % 2 for row in range(500)]})
    dataset = Dataset({"label": table.label.tolist(), "x": [[float(row)] for row in range(500)]})
    options = HuggingFaceSource(dataset="mine", target="label", client="who", inputs="x")
    where = Origin("mine", [("mine", "row", 0)])
    found = _of_inputs(dataset, table, [Name(name) for name in names], options, where, None)
    assert found.groups["client"] == sorted(names)
    assert found.inputs[:, 0].tolist() == sorted(range(500), key=lambda row: (names[row], row))
    assert Name.compared < 10 * 500


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for keys, message in (
        ({}, "give client, a column, or partitioner"),
        ({"client": "wo"}, r"mine has no column 'wo' \(federation.client\): did you mean 'who'"),
        ({"client": "who", "part": "test"}, "federation.part: mine has no split 'test', only train"),
        ({"client": "who", "inputs": "picture", "group": "patients"}, r"'patients' \(federation.group\): .*'patient'"),
        ({"client": "who", "inputs": "pic"}, r"mine has no column 'pic' \(federation.inputs\)"),
        ({"partitioner": "IidPartitioner"}, "federation.partitioner: IidPartitioner failed: .*num_partitions"),
        ({"partitioner": "Other"}, "federation.partitioner: Other failed: .*no attribute 'Other'"),
    ):
        with pytest.raises(CoterieError, match=message):
            built(tmp_path, **keys)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CoterieError, match=r"needs datasets, which is not installed: .* 'coterie\[hf\]'"):
        built(tmp_path, client="who")
