"""A run on a table of one's own: what it stores of the schema and of the bytes, and that the table must stay."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from cli_helpers import coterie, error_of

from coterie.experiment import session
from coterie.federation.schema import Schema

EXPERIMENT = """\
federation: {source: table, path: patients.csv, client: hospital, target: sick}
model: linear
algorithms: [local, fedavg]
rounds: 2
seeds: [0, 1]
threads: 1
page: false
"""
COLUMNS = ["hospital", "age", "ward", "sick"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        (hospital, age, "ab"[age % 2], "no" if age < 50 else "yes")
        for hospital in ("east", "west")
        for age in range(40, 60)
    ]
    pd.DataFrame(rows, columns=COLUMNS).to_csv("patients.csv", index=False)
    Path("mine.yaml").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.parametrize("preprocessing", ["federated", "client", "none"])
def test_the_schema_of_each_seed_is_stored_and_its_bytes_are_booked(table: Path, preprocessing: str) -> None:
    done = coterie("run", "mine.yaml", "--output", "out", "-s", f"federation.preprocessing={preprocessing}",
                   "-s", "federation.categorical={ward: [a, b]}")  # fmt: skip
    assert done.exit_code == 0, done.output
    stored = {path.name: json.loads(path.read_text()) for path in (table / "out/schemas").iterdir()}
    assert sorted(stored) == ["seed0.json", "seed1.json"]
    schemas = stored["seed0.json"]
    each = schemas["clients"] if preprocessing == "client" else {"all": schemas["schema"]}
    assert sorted(each) == (["east", "west"] if preprocessing == "client" else ["all"])
    for schema in map(Schema.model_validate, each.values()):
        assert (schema.target, schema.labels, [feature.name for feature in schema.features or []]) == (
            "sick", ["no", "yes"], ["age", "ward"],
        )  # fmt: skip
    history = pd.read_parquet(table / "out/history.parquet")
    booked = history[history.phase == "prepare"]
    assert (booked.value > 0).all()
    assert len(booked) == (0 if preprocessing == "none" else 2 * 2 * 2)  # ways, methods, seeds
    row = json.loads((table / "out/summary.json").read_text())["rows"][0]
    assert (row["bytes_up"] > 0) == (preprocessing != "none")  # LOCAL sends nothing else


def test_a_table_that_has_changed_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = session.Session.noted

    def stop(self: session.Session, job: object, report: object) -> bool:
        noted(self, job, report)  # type: ignore[arg-type]
        self.stop.number = 2
        return True

    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "noted", stop)
        assert coterie("run", "mine.yaml", "--output", "out").exit_code == 130
    before = Path("patients.csv").read_text()
    Path("patients.csv").write_text(before.replace("east,40", "east,41"))
    message = error_of(coterie("resume", "out"))
    assert message == "patients.csv is not as it was when this run began: put the file back, or start a new run."
    Path("patients.csv").write_text(before)
    assert coterie("resume", "out").exit_code == 0


def test_newcomers_become_inputs_as_the_members_did(table: Path) -> None:
    assert coterie("run", "mine.yaml", "--output", "out", "-s", "seeds=[0]", "-s", "algorithms=[fedavg]").exit_code == 0
    rows = [("late", age, "a", "no" if age < 50 else "yes") for age in range(30, 70)]  # nobody is in ward b
    pd.DataFrame(rows, columns=COLUMNS).to_csv("late.csv", index=False)
    Path("late.yaml").write_text(EXPERIMENT.replace("patients.csv", "late.csv"))
    done = coterie("adapt", "out", "late.yaml")
    assert done.exit_code == 0, done.output
    assert "late" in pd.read_csv("out/adapted-1/fedavg/seed0.csv").client.tolist()
