"""A new client's table joins a finished run, encoded as those of its members, and its model predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_runs import tiny_run

import coterie
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.new_site import NewSite
from coterie.federation.frames import LARGEST
from coterie.federation.schema import Feature, Schema
from coterie.runs import NewcomersDirectory, RunDirectory, load_model
from coterie.yamltext import read_yaml

NUMBERS = [Feature(name=f"x{i}", mean=10.0 * i, std=1.0 + i) for i in range(54)]
WARD = Feature(name="ward", kind="category", values=["a", "b", "c", "d", "e"], missing=True)
SCHEMA = Schema(classes=10, target="label", features=[*NUMBERS, WARD])  # 60 inputs, as Synthetic(1, 1) has


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose inputs stand for the columns of such a table."""
    folder = tmp_path_factory.mktemp("members")
    federation = {"source": "synthetic", "partition": {"rule": "natural"}, "clients": 3}
    changes: dict[str, Any] = {"algorithms": ["local", "fedem"], "rounds": 1, "federation": federation}
    result, _ = tiny_run(folder, **changes)
    write_schemas(result.directory, {"schema": SCHEMA.as_dict()})
    return Path(result.directory)


def write_schemas(run: Path, tree: dict[str, Any]) -> None:
    (run / "schemas").mkdir(exist_ok=True)
    (run / "schemas" / "seed0.json").write_text(json.dumps(tree))


def patients(folder: Path, *, labels: bool = True, shift: float = 0.0) -> Path:
    """A table of 20 rows whose classes are 3 and 4."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({f.name: f.mean + f.std * draw.normal(size=20) + shift for f in NUMBERS})
    for feature in NUMBERS[:5]:  # the classes can be told apart
        table.loc[1::2, feature.name] += 4 * feature.std
    table["ward"] = [*"abcde" * 3, *"edcb", ""]
    if labels:
        table["label"] = [3, 4] * 10
    table.to_csv(folder / "harbour.csv", index=False)
    return folder / "harbour.csv"


def test_with_labels_it_learns_and_then_predicts(run: Path, tmp_path: Path) -> None:
    path = patients(tmp_path)
    adapted = coterie.adapt(run, path, ["newcomers.epochs=20"], output=tmp_path / "adapted")
    by_label = {row["label"]: row for row in adapted.rows}
    assert by_label["fedem"]["epochs"] == 20
    mixed = coterie.predict(tmp_path / "adapted", "harbour", path)
    again = coterie.predict(tmp_path / "adapted" / "labelled", "harbour", path, algorithm="fedem")
    pd.testing.assert_frame_equal(mixed, again)
    alone = coterie.predict(tmp_path / "adapted", "harbour", path, algorithm="local")
    assert (alone["class"].astype(int) == [3, 4] * 10).mean() > 0.9
    assert read_yaml((tmp_path / "adapted" / "newcomers.yaml").read_text(), "")["federation"]["client"] == "harbour"


def test_without_labels_it_gets_what_the_method_has(run: Path, tmp_path: Path) -> None:
    path = patients(tmp_path, labels=False)
    adapted = coterie.adapt(run, path, ["newcomers.epochs=3"], client="pier", output=tmp_path / "adapted")
    assert adapted.rows == [], "without labels nothing can be measured"
    assert not (tmp_path / "adapted" / "labelled").exists()
    answers = coterie.predict(tmp_path / "adapted", "pier", path, algorithm="fedem")
    member = sorted(path.stem for path in (run / "models" / "fedem" / "seed0").iterdir())[0]
    theirs = load_model(RunDirectory(run), "fedem", "", 0, member)
    received = load_model(RunDirectory(tmp_path / "adapted" / "unlabelled"), "fedem", "", 0, "pier")
    assert all(received[name].shape == tensor.shape for name, tensor in theirs.items())
    assert len(answers) == 20
    with pytest.raises(CoterieError, match=r"newcomers\.labelled: .*harbour\.csv has no labels"):
        coterie.adapt(run, path, ["newcomers.labelled=true"], output=tmp_path / "no")


def test_where_members_have_their_own_statistics_so_has_it(run: Path, tmp_path: Path) -> None:
    tree = SCHEMA.as_dict()
    other = {**tree, "features": [{**tree["features"][0], "mean": 5.0}, *tree["features"][1:]]}
    write_schemas(run, {"clients": {"one": tree, "two": other}})
    try:
        coterie.adapt(run, patients(tmp_path, shift=1e6), algorithms="fedem", output=tmp_path / "adapted")
        found = json.loads((tmp_path / "adapted" / "schemas" / "seed0.json").read_text())["clients"]["harbour"]
        assert found["features"][7]["mean"] == pytest.approx(1e6 + 70, abs=8)
        answers = coterie.predict(tmp_path / "adapted", "harbour", patients(tmp_path, shift=1e6), algorithm="fedem")
        assert answers["p_3"].std() > 0
        write_schemas(run, {"clients": {"one": tree, "two": {**tree, "features": tree["features"][::-1]}}})
        with pytest.raises(CoterieError, match="differ in more than statistics"):
            coterie.adapt(run, tmp_path / "harbour.csv", output=tmp_path / "no")
    finally:
        write_schemas(run, {"schema": tree})


def test_it_learns_nothing_of_a_member_where_it_has_no_numbers_of_its_own(run: Path, tmp_path: Path) -> None:
    """A column without numbers is 0 throughout, and one of equal numbers, whose mean is rounded, keeps its unit."""
    tree = SCHEMA.as_dict()
    tree["features"][8]["impute"] = True
    path = patients(tmp_path)
    table = pd.read_csv(path).assign(x7=36.6, x8="")
    table.to_csv(path, index=False)
    write_schemas(run, {"clients": {"one": tree}})
    try:
        with pytest.warns(CoterieWarning, match="'x8' is missing"):
            federation, schema = NewSite(RunDirectory(run), path, "harbour").federation(0)
    finally:
        write_schemas(run, {"schema": SCHEMA.as_dict()})
    assert schema.features is not None
    assert schema.features[7].mean == pytest.approx(36.6)
    assert schema.features[7].std == 1.0
    assert schema.features[8].mean == 0.0
    assert schema.features[8].std == LARGEST
    assert np.abs(federation.test.inputs[:, 7:9].numpy()).max() < 1e-6


def test_tables_that_do_not_fit(run: Path, tmp_path: Path) -> None:
    table = pd.read_csv(patients(tmp_path), dtype=str)
    table.rename(columns={"x3": "X3"}).to_csv(tmp_path / "renamed.csv", index=False)
    with pytest.raises(CoterieError, match="no column 'x3': is it the one called 'X3'"):
        coterie.adapt(run, tmp_path / "renamed.csv", output=tmp_path / "a")
    table.assign(label=["3"] * 19 + ["eleven"]).to_csv(tmp_path / "class.csv", index=False)
    with pytest.raises(CoterieError, match=r"line 21: 'label' should be one of 0, 1, .*, not 'eleven'"):
        coterie.adapt(run, tmp_path / "class.csv", output=tmp_path / "b")
    (run / "schemas" / "seed0.json").rename(run / "schemas" / "away.json")
    try:
        with pytest.raises(CoterieError, match="does not say how the members' tables became inputs"):
            coterie.adapt(run, tmp_path / "class.csv", output=tmp_path / "c")
    finally:
        (run / "schemas" / "away.json").rename(run / "schemas" / "seed0.json")
    with pytest.raises(CoterieError, match="--client names the owner of a table"):
        coterie.adapt(run, client="x")
    assert not NewcomersDirectory(tmp_path / "a").summary.exists()


def test_its_rows_are_split_by_patient_where_those_of_the_members_were(run: Path, tmp_path: Path) -> None:
    table = pd.read_csv(patients(tmp_path)).assign(person=[f"p{i // 4}" for i in range(20)], x0=np.arange(20))
    table.to_csv(tmp_path / "harbour.csv", index=False)
    config = run / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("  source: synthetic\n", "  source: synthetic\n  group: person\n"))
    try:
        site = NewSite(RunDirectory(run), tmp_path / "harbour.csv", "harbour")
        federation, _ = site.federation(0)
        persons = [set((part.inputs[:, 0].round().int() // 4).tolist()) for part in (federation.train, federation.test)]
        assert federation.test.n.tolist() == [4]
        assert not persons[0] & persons[1]
        table.drop(columns="person").to_csv(tmp_path / "harbour.csv", index=False)
        with pytest.warns(CoterieWarning, match="no column 'person'"):
            site.federation(0)
    finally:
        config.write_text(before)


def test_its_rows_are_weighed_where_those_of_the_members_were(run: Path, tmp_path: Path) -> None:
    weights = np.arange(1.0, 21.0)
    table = pd.read_csv(patients(tmp_path)).assign(w=weights, x0=np.arange(20))
    table.to_csv(tmp_path / "harbour.csv", index=False)
    config = run / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("  source: synthetic\n", "  source: synthetic\n  weights: w\n"))
    try:
        site = NewSite(RunDirectory(run), tmp_path / "harbour.csv", "harbour")
        federation, _ = site.federation(0)
        rows = federation.train.inputs[:, 0].round().long().numpy()
        expected = weights[rows] / weights[rows].mean()
        np.testing.assert_allclose(federation.train.own_weights, expected, rtol=1e-12)  # type: ignore[arg-type]
        table.drop(columns="w").to_csv(tmp_path / "harbour.csv", index=False)
        with pytest.warns(CoterieWarning, match=r"no column 'w' \(federation.weights\), .* its rows count alike"):
            federation, _ = site.federation(0)
        assert federation.train.weights is None
    finally:
        config.write_text(before)


def test_a_site_joins_a_federation_of_a_data_frame_by_its_rules(tmp_path: Path) -> None:
    """Its rows are split by patient, as those of the frame's clients were."""
    rows = np.arange(60)
    frame = pd.DataFrame({"ward": rows % 2, "person": rows // 5, "x": rows, "day": rows, "sick": rows % 2})
    federation = coterie.Federation.from_frame(frame, client="ward", target="sick", group="person", time="day")
    keys: dict[str, Any] = {"algorithms": ["local"], "model": "linear", "rounds": 1, "page": False}
    result = coterie.run(federation, output=tmp_path / "run", training={"epochs": 1}, **keys)
    frame.drop(columns="ward").to_csv(tmp_path / "harbour.csv", index=False)
    site, _ = NewSite(RunDirectory(result.directory), tmp_path / "harbour.csv", "harbour").federation(0)
    assert [part.n.item() for part in (site.train, site.validation, site.test)] == [35, 15, 10], "whole patients"
    latest = [part.inputs[:, 0].max().item() for part in (site.train, site.validation, site.test)]
    assert latest == sorted(latest)


def test_a_site_joins_a_regression_of_several_numbers(tmp_path: Path) -> None:
    """Both numbers are learnt and predicted; a table with one of them is a mistake."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(60, 2)), columns=["a", "b"])
    frame = frame.assign(u=2 * frame["a"], v=frame["b"] - frame["a"])
    federation = coterie.Federation.from_frame(frame.assign(ward=np.arange(60) % 2), client="ward", target=["u", "v"])
    keys: dict[str, Any] = {"algorithms": ["local", "fedavg"], "model": "linear", "rounds": 1, "page": False}
    run = coterie.run(federation, output=tmp_path / "run", training={"lr": 0.1}, **keys).directory
    path = tmp_path / "harbour.csv"
    frame.to_csv(path, index=False)
    adapted = coterie.adapt(run, path, ["newcomers.epochs=40"], output=tmp_path / "adapted")
    assert all(row["curve"][-1] < 0.1 for row in adapted.rows)
    answers = coterie.predict(tmp_path / "adapted", "harbour", path, algorithm="fedavg")
    assert abs(answers[["u", "v"]] - frame[["u", "v"]]).to_numpy().mean() < 0.1
    frame[["a", "b"]].to_csv(path, index=False)
    assert coterie.adapt(run, path, output=tmp_path / "unlabelled").rows == []
    frame.drop(columns="u").to_csv(path, index=False)
    with pytest.raises(CoterieError, match="has no column 'u', one of the 2 targets"):
        coterie.adapt(run, path, output=tmp_path / "no")
    frame.assign(v=["?", *frame["v"][1:]]).to_csv(path, index=False)
    with pytest.raises(CoterieError, match="line 2: 'v' should be a number, not ''"):
        coterie.adapt(run, path, output=tmp_path / "no")
