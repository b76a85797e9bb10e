"""Schemas, and one sentence for each way in which data may differ from one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from site_examples import PATIENTS, patients

from coterie.deploy.reading import Found
from coterie.deploy.schema import Schema, differences, infer_schema, read_schema, write_schema
from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation, build_federation
from coterie.federation.arrays import Arrays
from coterie.federation.frames import encode, read_frame


def of_table(table: pd.DataFrame, features: list[str] | None = None) -> list[str]:
    return differences(PATIENTS, Found(tables={"all": table.astype(str)}), features)


def test_data_that_fit_do_not_differ() -> None:
    assert of_table(patients()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.drop(columns="age"), "The column 'age' is missing."),
        (
            lambda t: t.assign(id=range(len(t))),
            "The column 'id' is not in the schema: list the features that are, or remove it.",
        ),
        (
            lambda t: t.assign(age=["old", *t.age[1:]]),
            "The column 'age' should hold numbers, but does not in row 2.",
        ),
        (
            lambda t: t.assign(sex=[*t.sex[:-2], "x", "y"]),
            "The column 'sex' holds none of f, m in 2 rows, the first of them row 50.",
        ),
        (
            lambda t: t.assign(age=["", *t.age[1:]]),
            "The column 'age' lacks values in row 2, which the schema does not allow.",
        ),
        (lambda t: t.drop(columns="state"), "The target 'state' is missing."),
        (
            lambda t: t.assign(state=["dead", *t.state[1:]]),
            "The target 'state' is none of the classes healthy, sick in row 2.",
        ),
    ],
)
def test_each_difference_of_a_table_is_one_sentence(change, sentence: str) -> None:
    assert of_table(change(patients())) == [sentence]


def test_listed_features_leave_the_others_out() -> None:
    table = patients().assign(id=range(50))
    assert of_table(table, ["age", "sex", "pressure"]) == []
    assert of_table(table, ["age", "sex"]) == ["The column 'pressure' is not among the features that the site lists."]


def test_sentences_hold_no_value_of_the_data() -> None:
    secret = patients().assign(age="Mary-1971", sex="Mary-1971", state="Mary-1971", pressure="Mary-1971")
    assert len(of_table(secret)) == 4
    assert "Mary" not in " ".join(of_table(secret))


ARRAYS = Schema(classes=3, shape=[2])


@pytest.mark.parametrize(
    ("inputs", "targets", "sentence"),
    [
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), "Inputs have the shape (3,) where (2,) is expected."),
        (torch.zeros(4, 2), torch.tensor([0, 1, 3, -1]), "Targets are none of the classes 0, 1, 2 in 2 examples, the"),
        (torch.zeros(4, 2), torch.zeros(4, 1), "Targets should be whole numbers, one class an example."),
        (
            torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]),
            torch.tensor([0, 1]),
            "The inputs are NaN or infinite in exa",
        ),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), "There are no examples."),
    ],
)
def test_each_difference_of_arrays_is_one_sentence(inputs, targets, sentence: str) -> None:
    found = differences(ARRAYS, Found(arrays={"all": Arrays(inputs, targets)}))
    assert len(found) == 1
    assert found[0].startswith(sentence)


def test_a_part_of_its_own_is_named() -> None:
    good = Arrays(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
    bad = Arrays(torch.zeros(4, 5), torch.tensor([0, 1, 2, 0]))
    found = differences(ARRAYS, Found(arrays={"all": good, "test": bad}))
    assert found == ["In the test data: Inputs have the shape (5,) where (2,) is expected."]


def test_a_regression_wants_numbers() -> None:
    schema = Schema(task="regression", classes=2, shape=[2])
    assert differences(schema, Found(arrays={"all": Arrays(torch.zeros(4, 2), torch.zeros(4, 2))})) == []
    found = differences(schema, Found(arrays={"all": Arrays(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))}))
    assert found == ["Targets should be 2 numbers an example, floating point: (n, 2)."]


def test_federations() -> None:
    federation = build_federation({"source": "synthetic", "partition": {"rule": "natural"}, "clients": 2}, seed=0)
    one = federation.select([0])
    schema = Schema.of(federation)
    assert (schema.task, schema.classes, schema.input_shape) == ("classification", 10, (60,))
    assert differences(schema, one) == []
    assert differences(schema.model_copy(update={"classes": 9}), one)[0] == "There are 10 classes where 9 are expected."
    assert differences(schema.model_copy(update={"shape": [3]}), one) == [
        "Inputs have the shape (60,) where (3,) is expected."
    ]
    nothing = ClientData(torch.zeros(0, 60), torch.zeros(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    empty = Federation(("a",), nothing, one.validation, one.test, "classification", 10)
    assert differences(schema, empty) == ["There are no training examples."]


def test_the_normalisation_is_part_of_the_schema() -> None:
    section = {"source": "synthetic", "partition": {"rule": "natural"}, "clients": 2, "normalise": [0.5, 2.0]}
    schema = Schema.of(build_federation(section, seed=0))
    assert (schema.mean, schema.std) == ([0.5], [2.0])


def test_a_schema_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    for schema in (PATIENTS, ARRAYS, Schema(task="regression", classes=1, shape=[1, 8, 8], mean=[0.5], std=[0.5])):
        write_schema(path, schema)
        assert read_schema(path) == schema


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("clases: 2\nshape: [3]", "unknown key clases: did you mean classes?"),
        ("classes: 2", "give features, the columns of a table, or shape, that of one input"),
        ("classes: 2\nshape: [3]\nlabels: [a]", "there are 2 classes: list so many different labels"),
        ("classes: 2\nfeatures: [{name: a, kind: category}]", "the category a needs values"),
        ("classes: 2\nfeatures: [{name: a}, {name: a}]", "list each feature once"),
        ("classes: 2\nshape: [3]\nlabels: [no, yes]", "labels: put yes, no, true and false into quotes"),
        ("classes: 2\nfeatures: [{name: a, kind: category, values: [on, off]}]", "features[0].values: put yes, no"),
        ("classes: 2\nfeatures: [{name: a, std: 0.0}]", "features[0].std must be greater than 0, not 0.0"),
    ],
)
def test_a_wrong_schema_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    with pytest.raises(CoterieError) as caught:
        read_schema(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_inferring_a_schema(tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "p.csv", index=False)
    table = read_frame(tmp_path / "p.csv")
    schema = infer_schema(table, "state", missing="mark")
    assert [(f.name, f.kind, list(f.values), f.missing) for f in schema.features or []] == [
        ("age", "number", [], False),
        ("sex", "category", ["f", "m"], False),
        ("pressure", "number", [], True),
    ]
    assert (schema.labels, schema.classes, schema.input_shape) == (["healthy", "sick"], 2, (5,))
    assert all((f.mean, f.std) == (0.0, 1.0) for f in schema.features or [])
    standard = infer_schema(table, "state", ["age"], standardise=True)
    encoded = encode(table, standard.features or [])
    assert abs(float(encoded.mean())) < 1e-6
    assert abs(float(encoded.std()) - 1) < 1e-6
    with pytest.raises(CoterieError, match="too many for a category"):
        infer_schema(pd.DataFrame({"id": [f"p{i}" for i in range(200)], "y": [0, 1] * 100}), "y")
    with pytest.raises(CoterieError, match="the column 'day' holds dates: leave it out of features"):
        infer_schema(pd.DataFrame({"day": ["2024-05-31"] * 4, "y": [0, 1] * 2}), "y")


def test_the_kind_of_target() -> None:
    x = np.arange(100)
    for target, labels in (
        (x % 3, ["0", "1", "2"]),
        ((x % 2).astype(bool), ["false", "true"]),
        (np.where(x > 5, "b", "a"), ["a", "b"]),
        (x, None),
        (x / 7, None),
    ):
        assert infer_schema(pd.DataFrame({"x": x, "y": target}), "y").labels == labels
    assert infer_schema(pd.DataFrame({"x": x, "y": x % 3}), "y", task="regression").task == "regression"
    assert infer_schema(pd.DataFrame({"x": x, "y": x}), "y", task="classification").classes == 100


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,a\n1,2\n", "has the column 'a' twice"),
        ("a,b\n", "has no rows"),
        ("", "cannot be read as a table: it is empty"),
        ("a,b\n1,2\n3,4,5\n", "it has more cells than before in line 3"),
        ("a,b,c\n1,2,3\n3,5\n", r"t.csv, line 3 has 2 cells where 3 are expected: write empty cells between"),
        ('a,b\n1,2\n"3,4\n', "a quotation mark is never closed in line 3"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(CoterieError, match=sentence):
        read_frame(tmp_path / "t.csv")


def test_a_table_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("âge\n1\n".encode("latin-1"))
    with pytest.raises(CoterieError, match=r"it is not UTF-8 text; save it as CSV in UTF-8, or as \.parquet\.$"):
        read_frame(tmp_path / "t.csv")


def test_a_table_without_a_header_or_with_semicolons_is_one_sentence() -> None:
    table = patients()
    merged = pd.DataFrame({";".join(table.columns): ["57;f;120;sick"] * 20})
    headless = table.set_axis(["57", "f", "120", "sick"], axis=1)
    for wrong in (merged, headless):
        assert of_table(wrong) == [
            "The table has no column of the schema: its first row must name the columns, with commas between them."
        ]
