"""The source ``table``: a user's own rows, split and prepared without pooling them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import HOSPITALS, built, patients

from coterie.config import load_config
from coterie.errors import CoterieError, CoterieWarning
from coterie.federation import Federation, FederationConfig, build_federation
from coterie.federation.build import settled
from coterie.federation.frames import encode
from coterie.federation.portrait import class_labels, portrait
from coterie.federation.schema import Schema
from coterie.federation.show import class_grid, class_plot


def test_one_line_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # relative to where we are, without a data directory
    patients().drop(columns=["stay", "patient", "day"]).to_csv("patients.csv", index=False)
    section = {"source": "table", "path": "patients.csv", "client": "hospital", "target": "sick"}
    federation = build_federation(section, seed=0)
    assert federation.names == HOSPITALS
    assert federation.feature_shape == (4,)  # age, dose and two wards
    assert [federation.split(part).n.tolist() for part in ("train", "validation", "test")] == [
        [12] * 3,
        [4] * 3,
        [4] * 3,
    ]


@pytest.mark.parametrize("ending", [".csv.gz", ".parquet"])
def test_other_files_give_the_same(tmp_path: Path, ending: str) -> None:
    expected = built(tmp_path, patients())
    path = tmp_path / f"again{ending}"
    table = patients()
    table.to_parquet(path) if ending == ".parquet" else table.to_csv(path, index=False)
    assert torch.equal(built(tmp_path, patients(), path=path.name).train.inputs, expected.train.inputs)


def test_statistics_are_those_of_all_training_rows_and_of_no_other(tmp_path: Path) -> None:
    federation = built(tmp_path, patients())
    train = torch.cat([federation.train.client(i)[0] for i in range(3)])
    assert torch.allclose(train[:, [0, 3]].mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(train[:, [0, 3]].std(0, correction=0), torch.ones(2), atol=1e-6)
    schema = federation.source["schema"]
    # whatever becomes of test rows, the schema stays
    rows = federation.test.rows(torch.arange(federation.test.total)).numpy()
    table = patients()
    table.loc[rows, "dose"] = 1000.0
    assert built(tmp_path, table).source["schema"] == schema
    assert Schema.model_validate(schema).targets == ("sick",)


def test_each_client_by_its_own_rows(tmp_path: Path) -> None:
    federation = built(tmp_path, patients(), preprocessing="client")
    for i in range(3):
        own = federation.train.client(i)[0][:, [0, 3]]
        assert torch.allclose(own.mean(0), torch.zeros(2), atol=1e-6)
        assert torch.allclose(own.std(0, correction=0), torch.ones(2), atol=1e-6)
    schemas = federation.source["schemas"]
    assert list(schemas) == list(HOSPITALS)
    assert len({schema["features"][0]["mean"] for schema in schemas.values()}) == 3
    assert list(federation.select([2, 0]).source["schemas"]) == ["west", "north"]


def test_a_column_that_a_client_lacks_in_training_is_no_input_there(tmp_path: Path) -> None:
    table = patients().assign(part=(["train"] * 3 + ["test"] * 3) * 10)
    table["age"] = table.age.astype(float) + 200
    table.loc[(table.hospital == "west") & (table.part == "train"), "age"] = np.nan
    federation = built(tmp_path, table, split="part", preprocessing="client", missing="mark")
    west = HOSPITALS.index("west")
    assert federation.test.client(west)[0][:, 0].unique().tolist() == [0]  # the mark says which are missing
    assert len(federation.test.client(0)[0][:, 0].unique()) > 1
    schema = Schema.model_validate(federation.source["schemas"]["west"])
    assert encode(table[table.hospital == "west"], schema.features or [])[:, 0].tolist() == [0] * 20


def test_nothing_is_computed(tmp_path: Path) -> None:
    table = patients()
    federation = built(tmp_path, table, preprocessing="none", categorical={"ward": ["a", "b", "c"]})
    assert federation.preparation is None
    assert federation.feature_shape == (5,)
    assert set(federation.train.inputs[:, 0].tolist()) == set(table.age)
    with pytest.raises(CoterieError, match="column 'ward' are not collected under preprocessing: none: list them"):
        built(tmp_path, table, preprocessing="none")


def test_numbers_far_larger_than_their_differences_are_told(tmp_path: Path) -> None:
    """Single precision keeps 24 bits of 1,700,000,000 seconds: steps of 128."""
    table = patients()
    table["at"] = 1_700_000_000 + np.arange(len(table))
    options: dict[str, Any] = {"categorical": {"ward": ["a", "b", "c"]}}
    with pytest.warns(CoterieWarning, match="values of the column 'at' are so large beside their differences"):
        federation = built(tmp_path, table, preprocessing="none", **options)
    assert len(federation.train.inputs[:, -1].unique()) <= 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(tmp_path, patients(), preprocessing="none", **options)
        exact = built(tmp_path, table, preprocessing="federated", **options)
    assert len(exact.train.inputs[:, -1].unique()) == len(exact.train.inputs)


def test_what_the_summaries_cost(tmp_path: Path) -> None:
    federated, own = (built(tmp_path, patients(), preprocessing=by).preparation for by in ("federated", "client"))
    assert federated is not None
    assert own is not None
    assert federated.bytes_up.shape == (3,)
    assert (own.bytes_up < federated.bytes_up).all()  # no sums
    assert (own.bytes_down < federated.bytes_down).all()
    assert federated.select([1]).bytes_up.tolist() == [federated.bytes_up[1]]


@pytest.mark.parametrize(("missing", "width"), [("mark", 5), ("mean", 4)])
def test_missing_values(tmp_path: Path, missing: str, width: int) -> None:
    table = patients()
    table["dose"] = [None if i % 5 == 0 else dose for i, dose in enumerate(table.dose)]
    with pytest.raises(
        CoterieError, match=r"patients.csv, line 2: the column 'dose' has no value, as in 12 of 60 rows"
    ):
        built(tmp_path, table)
    federation = built(tmp_path, table, missing=missing)
    assert federation.feature_shape == (width,)
    inputs = federation.train.inputs
    gone = torch.tensor(table.dose.isna().to_numpy())
    assert (inputs[gone][:, 3] == 0).all()
    if missing == "mark":
        assert torch.equal(inputs[:, 4] == 1, gone)


def test_several_targets(tmp_path: Path) -> None:
    federation = built(tmp_path, patients(), target=["stay", "dose"], ignore=["sick", "patient", "day"])
    assert (federation.task, federation.classes) == ("regression", 2)
    assert federation.train.targets.shape == (60, 2)
    assert federation.source["schema"]["target"] == ["stay", "dose"]


def test_an_official_split_is_respected(tmp_path: Path) -> None:
    table = patients().assign(part=(["train"] * 3 + ["Test"] * 3) * 10)
    assert built(tmp_path, table, split="part", validation=0).validation.total == 0
    federation = built(tmp_path, table, split="part")
    tested = federation.test.rows(torch.arange(federation.test.total)).numpy()
    assert set(tested) == set(np.flatnonzero(table.part == "Test"))
    assert federation.validation.n.tolist() == [2] * 3  # of the ten training rows of each
    table.loc[:2, "part"] = "val"
    federation = built(tmp_path, table, split="part")
    assert sorted(federation.validation.rows(torch.arange(3)).tolist()) == [0, 1, 2]
    assert torch.equal(built(tmp_path, table, split="part", validation=0.2).train.inputs, federation.train.inputs)
    for said in (0, 0.5):
        with pytest.raises(CoterieError, match=f"which rows are for validation, so validation: {said} has no effect"):
            built(tmp_path, table, split="part", validation=said)
    with pytest.raises(CoterieError, match="split says which rows are for testing: leave out test"):
        built(tmp_path, table, split="part", test=0.3)
    with pytest.raises(CoterieError, match=r"line 3: 'later' is no split: write train, validation or test"):
        built(tmp_path, table.assign(part=["train", "later"] + ["test"] * 58), split="part")


def test_rows_of_a_patient_stay_together(tmp_path: Path) -> None:
    table = patients(40)
    federation = built(tmp_path, table, group="patient")
    for i, hospital in enumerate(HOSPITALS):
        groups = []
        for part in ("train", "validation", "test"):
            data = federation.split(part)  # type: ignore[arg-type]
            rows = data.rows(torch.arange(int(data.offsets[i]), int(data.offsets[i + 1]))).numpy()
            assert len(rows)
            groups.append(set(table.patient[rows]))
            assert set(table.hospital[rows]) == {hospital}
        assert not groups[0] & groups[1]
        assert not (groups[0] | groups[1]) & groups[2]
    with pytest.raises(CoterieError, match=r"Client 'north' gets no test examples, .* only 1 block that must stay"):
        built(tmp_path, table.assign(ward="a"), group="ward")


def test_the_future_is_tested(tmp_path: Path) -> None:
    table = patients()
    federation = built(tmp_path, table, time="day")
    for i in range(3):
        days = []
        for part in ("train", "validation", "test"):
            data = federation.split(part)  # type: ignore[arg-type]
            days.append(table.day[data.rows(torch.arange(int(data.offsets[i]), int(data.offsets[i + 1]))).numpy()])
        assert days[0].max() < days[1].min()
        assert days[1].max() < days[2].min()
    with pytest.raises(
        CoterieError, match=r"line 4: 'soon' in the column 'day' \(federation.time\) is neither a number"
    ):
        built(tmp_path, table.assign(day=[*table.day[:2], "soon", *table.day[3:]]), time="day")


def test_a_category_unseen_in_training_is_told_once(tmp_path: Path) -> None:
    table = patients().assign(part=(["train"] * 3 + ["test"] * 3) * 10)
    table.loc[[3, 4], "ward"] = ["x", "y"]
    with pytest.warns(
        CoterieWarning, match=r"value 'x' of the column 'ward' at client 'north' is none .* \(and 1 more"
    ):
        federation = built(tmp_path, table, split="part")
    assert federation.source["schema"]["features"][1]["values"] == ["a", "b"]
    assert federation.test.inputs[3, 1:3].tolist() == [0, 0]


def test_a_class_unseen_in_training_is_an_error_unless_it_is_listed(tmp_path: Path) -> None:
    table = patients().assign(part=(["train"] * 3 + ["test"] * 3) * 10)
    table.loc[3, "sick"] = "very"
    with pytest.raises(
        CoterieError, match=r"line 5: the class 'very' of the target is in the test data of client 'north'"
    ):
        built(tmp_path, table, split="part")
    assert built(tmp_path, table, split="part", labels=["no", "yes", "very"]).classes == 3


def test_small_clients_are_never_dropped_in_silence(tmp_path: Path) -> None:
    table = pd.concat([patients(), patients().head(1).assign(hospital="tiny")])
    with pytest.raises(CoterieError, match=r"Client 'tiny' has 1 example, which is too few .* min_examples"):
        built(tmp_path, table)
    with pytest.raises(CoterieError, match="Client 'tiny'"):
        built(tmp_path, table, partition={"rule": "natural"})
    with pytest.warns(CoterieWarning, match="tiny"):
        assert built(tmp_path, table, partition={"rule": "natural", "min_examples": 3}).names == HOSPITALS


def test_rows_may_be_divided_by_another_rule(tmp_path: Path) -> None:
    federation = built(tmp_path, patients(), partition={"rule": "iid", "clients": 4})
    assert federation.k == 4
    with pytest.raises(CoterieError, match="'table' says itself which rows are for testing"):
        built(
            tmp_path,
            patients().assign(part=(["train"] * 3 + ["test"] * 3) * 10),
            partition={"rule": "iid", "clients": 4},
            split="part",
        )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"client": "hopsital"}, r"patients.csv has no column 'hopsital' \(federation.client\): did you mean 'hospital'\?"),
        ({"target": "zzz"}, r"has no column 'zzz' \(federation.target\): its columns are hospital, age, ward"),
        ({"features": ["age", "sick"]}, "federation.features lists 'sick', which is the target"),
        ({"weights": "dos"}, r"has no column 'dos' \(federation.weights\): did you mean 'dose'"),
        ({"weights": "dose", "features": ["age", "dose"]}, "federation.features lists 'dose', which weighs the rows"),
        ({"weights": "ward"}, r"line 2: '.' in the column 'ward' \(federation.weights\) is no weight: give a finite"),
        ({"group": "patient", "split": "part"}, "split says where every row belongs, so group has no effect"),
        ({"path": "pateints.csv"}, "federation.path: there is neither .*pateints.csv nor .*pateints.csv: correct the path"),
        ({"preprocessing": "none", "missing": "mean"}, "missing: mean needs a mean"),
        ({"labels": ["no", "no"]}, "a value of labels of sick is listed twice: list each once"),
        ({"categorical": {"ward": ["a", "a"]}}, "a value of ward is listed twice: list each once"),
        ({"labels": ["no", "maybe"]}, r"the target 'sick' is 'yes', which is none of the classes no, maybe"),
        ({"ignore": ["age", "ward", "dose", "stay", "patient", "day"]}, "has no column left to predict from"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        built(tmp_path, patients(), **keys)


def test_wrong_tables(tmp_path: Path) -> None:
    good = patients()
    odd = good.astype({"dose": object})
    odd.loc[[4, 9], "dose"] = ["much", "more"]
    for table, message in (
        (odd, r"patients.csv, line 6: 'much' in the column 'dose', which holds numbers elsewhere: correct it, or list"),
        (good.assign(sick="no"), "The target 'sick' is 'no' in every row, so there is nothing to predict"),
        (good.assign(sick=["", *good.sick[1:]]), r"line 2: the column 'sick' \(federation.target\) is empty, as in 1 of 60"),
        (good.assign(hospital=["", *good.hospital[1:]]), r"line 2: the column 'hospital' \(federation.client\) is empty"),
        (good.assign(ward=[f"w{i}" for i in range(60)] ).loc[lambda t: t.index.repeat(2)].assign(ward=[f"w{i}" for i in range(120)]), "holds 120 different texts, too many"),
        ("", "it is empty"),
        ("hospital,sick\n", "has no rows"),
        ("hospital,age,age,sick\nn,1,2,yes\n", "has the column 'age' twice: rename one"),
    ):  # fmt: skip
        with pytest.raises(CoterieError, match=message):
            built(tmp_path, table)


def test_the_section_as_stored_is_read_again(tmp_path: Path) -> None:
    section = {"source": "table", "path": "patients.csv", "client": "hospital", "target": "sick", "split": "part"}
    config = load_config({"federation": section})
    assert load_config(config.as_dict()) == config


def test_other_clients_become_inputs_as_the_first_ones_did(tmp_path: Path) -> None:
    table = patients()
    members = built(tmp_path, table)
    like = {"schema": members.source["schema"]}
    late = table[table.hospital == "west"].assign(ward="a", dose=table.dose + 100)
    federation = built(tmp_path, late, like=like)
    assert federation.source["schema"] == members.source["schema"]
    assert federation.preparation is None
    mean, std = (members.source["schema"]["features"][2][key] for key in ("mean", "std"))
    expected = torch.tensor((late.dose.to_numpy() - mean) / std, dtype=torch.float32)
    assert torch.allclose(federation.train.inputs[:, 3], expected)
    assert federation.feature_shape == (4,)  # ward b is an input still
    only_yes = late[late.sick == "yes"]
    assert set(built(tmp_path, only_yes, like=like).train.targets.tolist()) == {1}
    with pytest.raises(CoterieError, match=r"line 2: the column 'dose' is a category, but was a number in training"):
        built(tmp_path, late.assign(dose="much"), like=like)
    alone = built(tmp_path, late, like={"clients": built(tmp_path, table, preprocessing="client").source["schemas"]})
    assert float(alone.train.client(0)[0][:, 3].mean()) == pytest.approx(0, abs=1e-5)
    assert alone.feature_shape == (4,)


def test_classes_are_shown_by_name(tmp_path: Path) -> None:
    federation = built(tmp_path, patients())
    assert class_labels(federation) == ["no", "yes"]
    assert str(class_grid(federation).caption).endswith("by client and class: 0 = no, 1 = yes")
    assert [bar.name for bar in class_plot(federation).data] == ["no", "yes"]
    assert portrait(federation)["labels"] == ["no", "yes"]


def test_a_date_is_no_category_unless_it_is_called_one() -> None:
    """Texts as in a .csv file and pandas' own type; what only looks like a date is a category."""
    sentence = (
        "the data frame, row 0: 2024-05-31 in the column 'day' is a date, as all of its values are: list it under "
        "ignore, say time: day to split rows by it, or list it under categorical"
    )
    table = patients()[["hospital", "age", "sick"]]
    for values, found in {
        ("2024-05-31", "2024-06-01"): sentence,
        ("31.05.2024", ""): "31.05.2024 in the column 'day' is a date",
        ("2024-05", "2025-05"): "is a date",
        ("2024-05-31T10:00Z", "31 May 2024"): "is a date",
        ("2024-05-31", "unknown"): None,
        ("2001-2005", "2006-2010"): None,
        ("ward 2001", "1.2.3"): None,
    }.items():
        dated = table.assign(day=list(values) * 30)
        if found is None:
            assert Federation.from_frame(dated, client="hospital", target="sick").feature_shape == (3,)
        else:
            with pytest.raises(CoterieError, match=re.escape(found)):
                Federation.from_frame(dated, client="hospital", target="sick", missing="mark")
    days = table.assign(day=pd.Timestamp("2024-05-31"))
    with pytest.raises(CoterieError, match="is a date"):
        Federation.from_frame(days, client="hospital", target="sick")
    assert Federation.from_frame(days, client="hospital", target="sick", categorical=["day"]).feature_shape == (2,)


def test_the_size_of_the_test_is_told_once_the_data_are_read(tmp_path: Path) -> None:
    """A fifth, or official where a column or a file says so."""
    section = {"source": "table", "path": "patients.csv", "client": "hospital", "target": "sick", "features": ["age"]}
    patients().assign(part=["train", "test"] * 30).to_csv(tmp_path / "patients.csv", index=False)
    for keys, expected in (({}, 0.2), ({"split": "part"}, "official"), ({"test": 3}, 3)):
        config = settled(FederationConfig.model_validate({**section, **keys}), seed=0, data_dir=tmp_path)
        assert config.test == expected


def test_codes_that_look_like_numbers_stay_apart(tmp_path: Path) -> None:
    table = patients()
    for codes in (["01", "1", "1E2"], ["1_0", "10", "100"]):
        table["hospital"] = np.tile(codes, 20)
        assert built(tmp_path, table).names == tuple(sorted(codes))
    table["hospital"], table["sick"] = np.tile(["3", "3.0", "5"], 20), np.tile(["0.0", "1.000e+00", "1"], 20)
    federation = built(tmp_path, table)
    assert (federation.names, federation.source["schema"]["labels"]) == (("3", "5"), ["0", "1"])


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("dose", [1.5e300, 2.0] * 30, "line 2: 1.5e+300 in the column 'dose' is too large to compute with"),
        ("dose", ["1,5", "2,25"] * 30, "line 2: '1,5' in the column 'dose' seems to be a number: write a point"),
        ("dose", ["1,500.5", "12"] * 30, "'1,500.5' in the column 'dose' seems to be a number"),
        ("", range(60), "a column without a name: give it one, or remove it"),
    ],
)
def test_columns_that_cannot_be_learnt_from(tmp_path: Path, column: str, values: list[object], message: str) -> None:
    with pytest.raises(CoterieError, match=re.escape(message)):
        built(tmp_path, patients().assign(**{column: values}))


def test_cells_between_other_signs_and_commas_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"patients.csv has ';' between its cells: save it with commas"):
        built(tmp_path, patients().to_csv(index=False, sep=";"))
    text = patients().to_csv(index=False)
    assert torch.equal(built(tmp_path, text.replace("\n", ",\n")).train.inputs, built(tmp_path, text).train.inputs)
