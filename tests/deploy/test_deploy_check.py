"""`coterie deploy check`, as a site's people use it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from site_examples import PATIENTS, patients, patients_site, site
from typer.testing import CliRunner

from coterie.cli import app
from coterie.deploy.data import site_federation
from coterie.deploy.own_table import write_columns
from coterie.deploy.schema import write_schema
from coterie.errors import CoterieError
from coterie.federation.datasets.sites import SitesSource


def coterie(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["deploy", *map(str, words)])


def test_help_names_the_commands() -> None:
    result = coterie("--help")
    assert result.exit_code == 0
    for command in ("init", "check", "demo"):
        assert command in result.output
        assert coterie(command, "--help").exit_code == 0


def test_a_site_that_is_ready(tmp_path: Path) -> None:
    made = patients_site(tmp_path)
    write_schema(made.schema_path, PATIENTS)
    result = coterie("check", made.path)
    assert result.exit_code == 0, result.output
    assert "a: 30 train, 10 validation, 10 test examples" in result.output
    assert "Ready." in result.output


def test_without_a_schema_nothing_is_compared(tmp_path: Path) -> None:
    result = coterie("check", patients_site(tmp_path, target="state", missing="mark").path)
    assert result.exit_code == 0, result.output
    assert "There is no schema.yaml beside it, so nothing was compared." in result.output


def test_every_difference_is_a_sentence_and_the_code_is_2(tmp_path: Path) -> None:
    table = patients().drop(columns="sex").assign(extra=1)
    made = patients_site(tmp_path, table)
    write_schema(made.schema_path, PATIENTS)
    result = coterie("check", made.path)
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "differs: The column 'sex' is missing.",
        "differs: The column 'extra' is not in the schema: list the features that are, or remove it.",
        "2 to change.",
    ]
    report = json.loads(coterie("check", made.path, "--json").stdout)
    assert (report["client"], report["sizes"], len(report["differences"])) == ("a", {}, 2)


def test_what_cannot_be_read_is_a_difference_too(tmp_path: Path) -> None:
    made = patients_site(tmp_path)
    (tmp_path / "patients.csv").unlink()
    result = coterie("check", made.path)
    assert result.exit_code == 2
    assert f"there is no table {tmp_path / 'patients.csv'}." in result.output


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("client: a\ndta: {npz: x}\n")
    result = coterie("check", tmp_path / "site.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "unknown key dta: did you mean data?" in result.stderr


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    made = patients_site(tmp_path)
    write_schema(made.schema_path, PATIENTS)
    (tmp_path / "state").write_text("a file, not a folder")
    result = coterie("check", made.path)
    assert result.exit_code == 2
    assert "cannot be written (File exists)" in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_state_folder_without_permission(tmp_path: Path) -> None:
    made = patients_site(tmp_path)
    (tmp_path / "state").mkdir(mode=0o500)
    assert "Permission denied" in coterie("check", made.path).output


def test_a_site_that_says_otherwise_than_the_schema(tmp_path: Path) -> None:
    made = patients_site(tmp_path, target="sex", task="regression")
    write_schema(made.schema_path, PATIENTS)
    assert coterie("check", made.path).output.splitlines()[:2] == [
        "differs: data.target is sex in site.yaml, but state in the schema: leave it out.",
        "differs: data.task is regression in site.yaml, but classification in the schema: leave it out.",
    ]
    with pytest.raises(CoterieError, match=r"data\.target is sex"):
        site_federation(made, seed=0, schema=PATIENTS)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"policy": {"smallest_examples": 31}}, "policy.smallest_examples does not allow a site with so few"),
        ({"policy": {"algoritms": ["local"]}}, "policy: unknown key algoritms: did you mean algorithms?"),
        ({"policy": {"clip": -1.0}}, "policy: clip must be greater than 0, not -1.0."),
        ({"log": "."}, "is a folder: name a file."),
    ],
)
def test_what_would_keep_a_site_from_answering_differs(tmp_path: Path, more: Any, sentence: str) -> None:
    patients_site(tmp_path)
    made = site(tmp_path, {"table": "patients.csv"}, **more)
    write_schema(made.schema_path, PATIENTS)
    result = coterie("check", made.path)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "1 to change." in result.output


def test_a_budget_that_allows_no_answer_differs(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    patients_site(tmp_path)
    policy = {"clip": 1.0, "noise": 2.0, "epsilon": 1.0}  # the first answer spends 4.38
    write_schema(site(tmp_path, {"table": "patients.csv"}, policy=policy).schema_path, PATIENTS)
    assert "policy.epsilon does not allow a single further answer" in coterie("check", tmp_path / "site.yaml").output


AGAIN = "That is with one seed: each further one, and each fold of a guard, sends such sums again, over other rows."
TOGETHER = SitesSource(preprocessing="federated", target="state", labels=["healthy", "sick"], missing="mark")


def test_it_is_listed_what_leaves_a_table_that_sites_prepare_together(tmp_path: Path) -> None:
    made = patients_site(tmp_path)
    write_columns(made.columns_path, TOGETHER)
    result = coterie("check", made.path)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[:3] == [
        "a: 30 train, 10 validation, 10 test examples",
        "leaves before round 1: age: 30 numbers, their sum and sum of squares; 0 missing",
        "leaves before round 1: sex: f, m; 0 missing",
    ]
    assert lines[4] == AGAIN
    assert lines[5].startswith("Whether the other sites have these columns was not compared")
    assert lines[6:] == ["Ready."]
    report = json.loads(coterie("check", made.path, "--json").stdout)
    assert report["leaves"]["sex"] == [["f", "m"], 0]


def test_few_numbers_and_a_single_class_are_told_of(tmp_path: Path) -> None:
    few = patients().iloc[:5].assign(state="sick")
    made = patients_site(tmp_path, few)
    write_columns(made.columns_path, TOGETHER)
    result = coterie("check", made.path)
    assert result.exit_code == 0, result.output
    assert "All training rows are of the class 'sick'" in result.output
    assert "policy.smallest_group: 5 in site.yaml withholds those of fewer" in result.output
    ready = json.loads(coterie("check", patients_site(tmp_path).path, "--json").stdout)["remarks"]
    assert not any("All training rows" in remark or "smallest_group" in remark for remark in ready)


def test_a_table_that_sites_cannot_prepare_together(tmp_path: Path) -> None:
    made = patients_site(tmp_path, patients().assign(age=["old", *range(20, 69)]))
    write_columns(made.columns_path, TOGETHER)
    result = coterie("check", made.path)
    assert result.exit_code == 2
    assert "'old' in the column 'age', which holds numbers elsewhere" in result.output
    made = patients_site(tmp_path, patients().assign(age=["inf"] * 50))
    assert "'inf' in the column 'age' is no number to compute with" in coterie("check", made.path).output


def test_a_column_that_the_experiment_lists_and_the_table_lacks(tmp_path: Path) -> None:
    made = patients_site(tmp_path, patients().rename(columns={"sex": "sexe"}))
    write_columns(made.columns_path, TOGETHER.model_copy(update={"features": ["age", "sex"]}))
    assert "has no column 'sex' (federation.features): did you mean 'sexe'?" in coterie("check", made.path).output


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (None, "line 5: the target 'state' is missing: fill it in, or remove the row."),
        (
            "ill",
            "line 5: the target 'state' is 'ill', which is none of the experiment's classes healthy, sick: correct",
        ),
    ],
)
def test_a_target_that_is_no_class(tmp_path: Path, cell: str | None, sentence: str) -> None:
    table = patients()
    table.loc[3, "state"] = cell
    made = patients_site(tmp_path, table)
    write_columns(made.columns_path, TOGETHER)
    assert sentence in coterie("check", made.path).output


def test_an_experiment_is_compared_with_table_and_policy(tmp_path: Path) -> None:
    """As it was written: a class of somebody's own is refused by name, without being looked for."""
    patients_site(tmp_path)
    made = site(tmp_path, {"table": "patients.csv"}, policy={"algorithms": ["fedavg"], "evaluation": False})
    write_columns(made.columns_path, TOGETHER)
    experiment = {
        "federation": {"source": "sites", "preprocessing": "federated", "target": "age", "task": "regression",
                       "features": ["sex"]},
        "model": {"name": "nowhere:net"}, "algorithms": ["fedavg", {"name": "nowhere:Method"}], "guard": True,
    }  # fmt: skip
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(experiment))
    report = json.loads(coterie("check", made.path, "--config", tmp_path / "other.yaml", "--json").stdout)
    assert (list(report["leaves"]), report["differences"]) == (["sex", "age"], [])
    assert report["remarks"] == [
        AGAIN,
        "The site would refuse: policy.models does not allow nowhere:net.",
        "The site would refuse: policy.algorithms does not allow nowhere:Method.",
        "The site would tell the guard nothing, which then goes by the others: policy.evaluation is off.",
    ]
    (tmp_path / "other.yaml").write_text("[]")
    assert "is no experiment" in coterie("check", made.path, "-c", tmp_path / "other.yaml").stderr


def test_nothing_leaves_where_the_policy_forbids_it(tmp_path: Path) -> None:
    patients_site(tmp_path)
    made = site(tmp_path, {"table": "patients.csv"}, policy={"preprocessing": False})
    write_columns(made.columns_path, TOGETHER)
    report = json.loads(coterie("check", made.path, "--json").stdout)
    assert (report["leaves"], report["differences"]) == ({}, [])
    assert "Nothing leaves before round 1: policy.preprocessing does not allow" in coterie("check", made.path).output
