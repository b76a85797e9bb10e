"""A site's data as a federation of one client, compared with computations of their own."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from site_examples import PATIENTS, patients, patients_site, site

from coterie.deploy.data import site_federation
from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.folds import Fold
from coterie.federation.schema import Feature, Schema

SPLITS = ("train", "validation", "test")


def everything(federation: Federation) -> tuple[torch.Tensor, torch.Tensor]:
    """All examples, in the order of the splits."""
    parts = [federation.split(split).client(0) for split in SPLITS]  # type: ignore[arg-type]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def assert_equal(one: Federation, other: Federation) -> None:
    for split in SPLITS:
        for a, b in zip(one.split(split).client(0), other.split(split).client(0), strict=True):  # type: ignore[arg-type]
            assert torch.equal(a, b)


def test_a_table_is_encoded_by_the_constants_of_the_schema(tmp_path: Path) -> None:
    table = patients()
    federation = site_federation(patients_site(tmp_path, table), seed=3, schema=PATIENTS)
    assert federation.names == ("a",)
    assert [int(federation.split(split).n[0]) for split in SPLITS] == [30, 10, 10]  # type: ignore[arg-type]
    inputs, targets = everything(federation)
    rows = []
    for age, sex, pressure, state in table.itertuples(index=False):
        there = pressure != ""
        rows.append(
            (
                (age - 50) / 10,
                float(sex == "f"),
                float(sex == "m"),
                (float(pressure) - 120) / 20 if there else 0.0,
                float(not there),
                float(state == "sick"),
            )
        )
    expected = torch.tensor(sorted(rows), dtype=torch.float64).float()
    found = torch.tensor(sorted(torch.cat([inputs, targets[:, None]], 1).double().tolist())).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def rows_of(federation: Federation, split: str) -> list[list[float]]:
    """The examples of a split with their targets, in some order that does not depend on theirs."""
    inputs, targets = federation.split(split).client(0)  # type: ignore[arg-type]
    return sorted(torch.cat([inputs, targets[:, None].to(inputs.dtype)], 1).tolist())


@pytest.mark.parametrize("own_file", [False, True])
def test_in_the_folds_of_a_guard_every_row_that_is_not_for_testing_validates_once(
    own_file: bool, tmp_path: Path
) -> None:
    """Also where those for validation lie in a file of their own."""
    more = {}
    if own_file:
        patients(20, seed=1).to_csv(tmp_path / "later.csv", index=False)
        more = {"validation": "later.csv"}
    place = patients_site(tmp_path, **more)
    whole = site_federation(place, seed=3, schema=PATIENTS)
    folds = [site_federation(place, seed=3, schema=PATIENTS, fold=Fold(index=index, of=3)) for index in range(3)]
    both = sorted(rows_of(whole, "train") + rows_of(whole, "validation"))
    assert sorted(row for fold in folds for row in rows_of(fold, "validation")) == both
    for fold in folds:
        assert sorted(rows_of(fold, "train") + rows_of(fold, "validation")) == both
        assert rows_of(fold, "test") == rows_of(whole, "test")
        assert len(rows_of(fold, "validation")) in (len(both) // 3, len(both) // 3 + 1)


def test_csv_compressed_csv_and_parquet_are_the_same(tmp_path: Path) -> None:
    table = patients()
    plain = site_federation(patients_site(tmp_path, table), seed=0, schema=PATIENTS)
    with gzip.open(tmp_path / "p.csv.gz", "wt") as file:
        table.to_csv(file, index=False)
    table.assign(pressure=pd.to_numeric(table.pressure)).to_parquet(tmp_path / "p.parquet")
    for name in ("p.csv.gz", "p.parquet"):
        assert_equal(site_federation(site(tmp_path, {"table": name}), seed=0, schema=PATIENTS), plain)


def test_the_split_depends_on_the_seed_and_the_name_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    one = site_federation(patients_site(here), seed=5, schema=PATIENTS)
    assert_equal(one, site_federation(patients_site(there), seed=5, schema=PATIENTS))
    for client, seed in (("b", 5), ("a", 6)):
        other = site_federation(patients_site(there, client=client), seed=seed, schema=PATIENTS)
        assert not torch.equal(other.test.client(0)[0], one.test.client(0)[0])


def test_classes_are_split_in_like_proportion(tmp_path: Path) -> None:
    table = patients(50)
    table["state"] = ["sick"] * 10 + ["healthy"] * 40
    federation = site_federation(patients_site(tmp_path, table), seed=0, schema=PATIENTS)
    assert [int(federation.split(s).client(0)[1].sum()) for s in SPLITS] == [6, 2, 2]  # type: ignore[arg-type]


def test_numbers_and_files_of_their_own(tmp_path: Path) -> None:
    patients(20, seed=9).to_csv(tmp_path / "later.csv", index=False)
    federation = site_federation(patients_site(tmp_path, validation=7, test="later.csv"), seed=0, schema=PATIENTS)
    assert [int(federation.split(split).n[0]) for split in SPLITS] == [43, 7, 20]  # type: ignore[arg-type]
    ages = federation.test.client(0)[0][:, 0] * 10 + 50
    assert ages.round().tolist() == patients(20, seed=9).age.tolist()


def test_own_statistics_are_those_of_the_training_rows(tmp_path: Path) -> None:
    federation = site_federation(patients_site(tmp_path, standardise="own"), seed=0, schema=PATIENTS)
    ages = federation.train.client(0)[0][:, 0].double()
    assert abs(float(ages.mean())) < 1e-6
    assert abs(float(ages.std(correction=0)) - 1) < 1e-6
    assert abs(float(federation.test.client(0)[0][:, 0].mean())) > 1e-3


def test_a_column_without_training_values_is_0_under_own_statistics(tmp_path: Path) -> None:
    """As it stands, a later number would reach a model that never saw any."""
    numbers = [
        feature.model_copy(update={"mean": 0.0, "std": 1.0, "missing": True}) if feature.kind == "number" else feature
        for feature in PATIENTS.features or []
    ]
    schema = PATIENTS.model_copy(update={"features": numbers})
    table = patients().assign(age=np.nan)
    patients(20, seed=9).to_csv(tmp_path / "later.csv", index=False)
    site = patients_site(tmp_path, table, standardise="own", test="later.csv")
    federation = site_federation(site, seed=0, schema=schema)
    assert federation.test.client(0)[0][:, 0].unique().tolist() == [0]


def test_without_a_schema_a_table_is_what_it_seems_to_be(tmp_path: Path) -> None:
    table = patients()[["age", "sex", "state"]]
    federation = site_federation(patients_site(tmp_path, table, target="state"), seed=0, schema=None)
    assert (federation.feature_shape, federation.classes, federation.task) == ((3,), 2, "classification")
    with pytest.raises(CoterieError, match=r"'pressure' lacks values in 5 rows"):
        site_federation(patients_site(tmp_path, target="state"), seed=0, schema=None)
    marked = site_federation(patients_site(tmp_path, target="state", missing="mark"), seed=0, schema=None)
    assert marked.feature_shape == (4 + 3,)  # a mark for every column
    table.assign(age="").to_csv(tmp_path / "later.csv", index=False)
    with pytest.raises(CoterieError, match="In the test data: The column 'age' lacks values in 50 rows"):
        site_federation(patients_site(tmp_path, table, target="state", test="later.csv"), seed=0, schema=None)
    with pytest.raises(CoterieError, match=r"data\.target is missing"):
        site_federation(patients_site(tmp_path), seed=0, schema=None)


def test_a_regression(tmp_path: Path) -> None:
    table = patients()[["age", "sex"]].assign(cost=np.linspace(0, 1, 50))
    federation = site_federation(patients_site(tmp_path, table, target="cost"), seed=0, schema=None)
    assert (federation.task, federation.classes) == ("regression", 1)
    assert sorted(everything(federation)[1].flatten().tolist()) == pytest.approx(np.linspace(0, 1, 50).tolist())


def test_targets_are_standardised_by_the_constants_of_the_schema(tmp_path: Path) -> None:
    table = patients()[["age"]].assign(cost=np.linspace(1e6, 3e6, 50))
    age = Feature(name="age", mean=50.0, std=10.0)
    schema = Schema(task="regression", classes=1, target="cost", features=[age], target_mean=[2e6], target_std=[5e5])
    federation = site_federation(patients_site(tmp_path, table), seed=0, schema=schema)
    learnt = everything(federation)[1].flatten()
    assert sorted(learnt.tolist()) == pytest.approx(np.linspace(-2, 2, 50).tolist(), abs=1e-6)
    assert float(federation.train.targets.max()) > 1e6


def test_arrays(tmp_path: Path) -> None:
    x, y = np.arange(60, dtype=np.uint8).reshape(30, 1, 1, 2), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", inputs=x, y=y)
    schema = Schema(classes=3, shape=[1, 1, 2], mean=[0.5], std=[0.25])
    federation = site_federation(site(tmp_path, {"npz": "a.npz", "inputs": "inputs"}), seed=0, schema=schema)
    inputs, targets = everything(federation)
    order = inputs[:, 0, 0, 0].argsort()
    torch.testing.assert_close(inputs[order], torch.from_numpy((x / 255 - 0.5) / 0.25).float(), rtol=0, atol=1e-6)
    assert targets[order].tolist() == y.tolist()


def test_pickles_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1, dtype=int))
    with pytest.raises(CoterieError, match="pickles are not read"):
        site_federation(site(tmp_path, {"npz": "a.npz"}), seed=0, schema=None)


def test_folders_of_pictures(tmp_path: Path) -> None:
    for name, grey in (("cat", 10), ("dog", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("L", (8, 8), grey).save(tmp_path / "pictures" / name / f"{i}.png")
    schema = Schema(classes=3, labels=["bird", "cat", "dog"], shape=[3, 4, 4])
    federation = site_federation(site(tmp_path, {"folder": "pictures"}), seed=0, schema=schema)
    inputs, targets = everything(federation)
    assert inputs.shape == (12, 3, 4, 4)
    assert sorted(targets.tolist()) == [1] * 6 + [2] * 6  # a site may lack a class
    assert federation.source["class_names"] == ["bird", "cat", "dog"]
    torch.testing.assert_close(inputs[:, 0, 0, 0], torch.where(targets == 1, 10 / 255, 200 / 255))
    unnamed = Schema(classes=3, shape=[3, 4, 4])
    with pytest.raises(CoterieError, match="2 folders for 3 classes"):
        site_federation(site(tmp_path, {"folder": "pictures"}), seed=0, schema=unnamed)
    with pytest.raises(CoterieError, match=r"data\.size"):
        site_federation(site(tmp_path, {"folder": "pictures"}), seed=0, schema=None)
    (tmp_path / "pictures" / "cat").rename(tmp_path / "pictures" / "Cat")
    with pytest.raises(CoterieError, match="Cat is a folder of none of the classes bird, cat, dog: rename it"):
        site_federation(site(tmp_path, {"folder": "pictures"}), seed=0, schema=schema)


def test_functions_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "ownsitedata.py").write_text(
        "import numpy as np\n"
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "X = torch.arange(40.).reshape(20, 2)\n"
        "Y = torch.arange(20) % 2\n"
        "def pair(seed):\n    return X + seed, Y.numpy()\n"
        "def dataset(seed):\n    return TensorDataset(X + seed, Y)\n"
        "def breaks(seed):\n    raise RuntimeError('no database')\n"
        "def number(seed):\n    return 3\n"
    )
    one = site_federation(site(tmp_path, {"python": "ownsitedata:pair"}), seed=4, schema=None)
    assert sorted(everything(one)[0][:, 0].tolist()) == [2.0 * i + 4 for i in range(20)]
    assert_equal(one, site_federation(site(tmp_path, {"python": "ownsitedata:dataset"}), seed=4, schema=None))
    with pytest.raises(CoterieError, match=r"ownsitedata:breaks failed: RuntimeError: no database"):
        site_federation(site(tmp_path, {"python": "ownsitedata:breaks"}), seed=0, schema=None)
    with pytest.raises(CoterieError, match="gave a int where a Federation"):
        site_federation(site(tmp_path, {"python": "ownsitedata:number"}), seed=0, schema=None)


@pytest.mark.parametrize(
    ("section", "client"),
    [
        ({"source": "digits", "partition": {"rule": "rotation", "clients": 4}, "train": 20, "test": 20}, "client-02"),
        ({"source": "synthetic", "clients": 5, "normalise": [0.5, 2.0]}, "client-03"),
        pytest.param({"source": "heart-disease"}, "va", marks=pytest.mark.data),
    ],
)
def test_a_client_of_a_source_is_the_simulators_bit_for_bit(tmp_path: Path, section: dict, client: str) -> None:
    if section["source"] == "heart-disease" and not os.environ.get("COTERIE_DATA"):
        pytest.skip("COTERIE_DATA is not set")
    mine = site_federation(site(tmp_path, {**section, "client": client}, client="mine"), seed=7, schema=None)
    simulated = build_federation({"partition": {"rule": "natural"}, **section}, seed=7)
    assert mine.names == ("mine",)
    assert_equal(mine, simulated.select([simulated.names.index(client)]))
    assert mine.train.normal is simulated.train.normal or mine.train.normal is not None


def test_a_client_that_the_source_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"data\.client: there is no client a: the clients are client-00"):
        site_federation(site(tmp_path, {"source": "synthetic", "clients": 3}), seed=0, schema=None)


def test_too_few_examples(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="a has 3 examples, too few"):
        site_federation(patients_site(tmp_path, patients(3), test=3), seed=0, schema=PATIENTS)


def test_differences_stop_the_site(tmp_path: Path) -> None:
    schema = PATIENTS.model_copy(update={"features": [*(PATIENTS.features or []), Feature(name="weight")]})
    with pytest.raises(CoterieError, match=r"site\.yaml: The column 'weight' is missing\."):
        site_federation(patients_site(tmp_path), seed=0, schema=schema)
