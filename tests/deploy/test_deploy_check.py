"""`coterie deploy check`, as a site's people use it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import Result
from site_examples import PATIENTS, patients, patients_site
from typer.testing import CliRunner

from coterie.cli import app
from coterie.deploy.schema import write_schema


def coterie(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["deploy", *map(str, words)])


def test_help_names_the_commands() -> None:
    result = coterie("--help")
    assert result.exit_code == 0
    for command in ("init", "check", "demo"):
        assert command in result.output
        assert coterie(command, "--help").exit_code == 0


def test_a_site_that_is_ready(tmp_path: Path) -> None:
    site = patients_site(tmp_path)
    write_schema(site.schema_path, PATIENTS)
    result = coterie("check", site.path)
    assert result.exit_code == 0, result.output
    assert "a: 30 train, 10 validation, 10 test examples" in result.output
    assert "Ready." in result.output


def test_without_a_schema_nothing_is_compared(tmp_path: Path) -> None:
    result = coterie("check", patients_site(tmp_path, target="state", missing="mark").path)
    assert result.exit_code == 0, result.output
    assert "There is no schema.yaml beside it, so nothing was compared." in result.output


def test_every_difference_is_a_sentence_and_the_code_is_2(tmp_path: Path) -> None:
    table = patients().drop(columns="sex").assign(extra=1)
    site = patients_site(tmp_path, table)
    write_schema(site.schema_path, PATIENTS)
    result = coterie("check", site.path)
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "differs: The column 'sex' is missing.",
        "differs: The column 'extra' is not in the schema: list the features that are, or remove it.",
        "2 to change.",
    ]
    report = json.loads(coterie("check", site.path, "--json").stdout)
    assert (report["client"], report["sizes"], len(report["differences"])) == ("a", {}, 2)


def test_what_cannot_be_read_is_a_difference_too(tmp_path: Path) -> None:
    site = patients_site(tmp_path)
    (tmp_path / "patients.csv").unlink()
    result = coterie("check", site.path)
    assert result.exit_code == 2
    assert f"there is no table {tmp_path / 'patients.csv'}." in result.output


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("client: a\ndta: {npz: x}\n")
    result = coterie("check", tmp_path / "site.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "unknown key dta: did you mean data?" in result.stderr


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    site = patients_site(tmp_path)
    write_schema(site.schema_path, PATIENTS)
    (tmp_path / "state").write_text("a file, not a folder")
    result = coterie("check", site.path)
    assert result.exit_code == 2
    assert "cannot be written (File exists)" in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_state_folder_without_permission(tmp_path: Path) -> None:
    site = patients_site(tmp_path)
    (tmp_path / "state").mkdir(mode=0o500)
    assert "Permission denied" in coterie("check", site.path).output
