"""A site's own models answer for new tables as they did in the run that trained them, whatever has run since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from site_examples import PATIENTS, patients
from tabled import COLUMNS, SITES, simulate, table
from test_site_preparing import deployed, placed

import coterie
from coterie.deploy.data import site_federation
from coterie.deploy.schema import write_schema
from coterie.deploy.sitefile import SiteFile
from coterie.errors import CoterieError
from coterie.federation.schema import Schema
from coterie.models import build_model
from coterie.runs import read_model

OLD: dict[str, Any] = {"federation": {"source": "sites"}, "model": "linear", "report": "last"}
"""The tables follow what was agreed on beforehand, or are what they seem to be."""


def wards(folder: Path, schema: Schema | None, **data: Any) -> Path:
    """Sites with patients and, in a file of its own, more of them for testing."""
    for number, name in enumerate(SITES):
        (folder / name).mkdir(parents=True)
        patients(40, seed=number).to_csv(folder / name / "rows.csv", index=False)
        patients(9, seed=10 + number).to_csv(folder / name / "test.csv", index=False)
        section = {"table": "rows.csv", "validation": 5, "test": "test.csv", "target": "state", **data}
        (folder / name / "site.yaml").write_text(yaml.safe_dump({"client": name, "data": section}))
        if schema is not None:
            write_schema(folder / name / "schema.yaml", schema)
    return folder


@pytest.mark.parametrize(
    ("schema", "data"),
    [(PATIENTS, {}), (PATIENTS, {"standardise": "own"}), (None, {"missing": "mark"})],
    ids=["schema", "own", "none"],
)
def test_a_model_of_a_table_takes_tables(schema: Schema | None, data: dict[str, Any], tmp_path: Path) -> None:
    folder = wards(tmp_path / "sites", schema, **data)
    deployed(folder, {}, algorithms=["local", "fedavg"], **OLD)[0].run_or_resume(tmp_path / "run", None)
    place = folder / "north"
    said = coterie.predict(place, None, place / "test.csv", algorithm="fedavg")
    federation = site_federation(SiteFile.read(place / "site.yaml"), seed=0, schema=schema)
    network = build_model("linear", federation.feature_shape, 2, "classification").double()
    network.load_state_dict(read_model(place / "models" / "fedavg" / "seed0", "north").tensors)
    with torch.no_grad():
        expected = network(federation.test.client(0)[0].double()).softmax(-1)
    torch.testing.assert_close(torch.tensor(said[["p_healthy", "p_sick"]].to_numpy()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("preprocessing", ["federated", "client"])
def test_a_model_of_a_source_with_a_table_answers_as_the_simulations(preprocessing: str, tmp_path: Path) -> None:
    columns = {**COLUMNS, "preprocessing": preprocessing}
    simulated = simulate(tmp_path, columns, report="last")
    section = {"source": "table", "path": str(tmp_path / "all.csv"), "client": "site", **columns}
    folder = placed(tmp_path / "sites", **{name: {"data": section} for name in SITES})
    deployed(folder, {}, report="last")[0].run_or_resume(tmp_path / "deployed", None)
    ours, theirs = (
        coterie.predict(place, client, table(2), algorithm="fedavg")
        for place, client in ((folder / "west", None), (simulated, "west"))
    )
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)


def test_a_later_run_does_not_change_what_the_models_of_another_method_say(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    deployed(folder, algorithms=["local", "ditto"], report="last")[0].run_or_resume(tmp_path / "first", None)
    old = table(2)
    before = coterie.predict(folder / "west", None, old, algorithm="ditto")
    for number, name in enumerate(SITES):
        table(number).assign(age=lambda rows: 500 + 3 * rows["age"]).to_csv(folder / name / "rows.csv", index=False)
    deployed(folder, algorithms=["local", "fedavg"])[0].run_or_resume(tmp_path / "second", None)
    pd.testing.assert_frame_equal(coterie.predict(folder / "west", None, old, algorithm="ditto"), before)


def test_a_model_of_arrays_knows_nothing_of_the_columns_of_another_run(tmp_path: Path) -> None:
    """Though as many inputs would fit."""
    folder = placed(tmp_path / "sites")
    deployed(folder, algorithms=["local"])[0].run_or_resume(tmp_path / "first", None)
    schema = Schema.model_validate(json.loads((folder / "west" / "schemas" / "seed0.json").read_text())["schema"])
    inputs = np.random.default_rng(0).normal(size=(30, schema.inputs))
    for name in SITES:
        np.savez(folder / name / "rows.npz", x=inputs, y=np.arange(30) % 2)
        section = {"npz": "rows.npz", "validation": 5, "test": 5}
        (folder / name / "site.yaml").write_text(yaml.safe_dump({"client": name, "data": section}))
    deployed(folder, {}, algorithms=["local", "fedavg"], **OLD)[0].run_or_resume(tmp_path / "second", None)
    with pytest.raises(CoterieError, match="is a table, but the model of west takes arrays"):
        coterie.predict(folder / "west", None, table(2), algorithm="fedavg")


def test_a_file_whose_schema_is_damaged_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = placed(tmp_path / "sites")
    deployed(folder, algorithms=["local"])[0].run_or_resume(tmp_path / "run", None)
    models = folder / "west" / "models" / "local" / "seed0"
    stored = read_model(models, "west")
    facts = {**stored.facts, "schema": {"classes": "two"}}
    save_file(stored.tensors, models / "west.safetensors", metadata={"coterie": json.dumps(facts)})
    with pytest.raises(CoterieError, match=r"The model of west by local in \S+ is damaged \(its schema is none\)"):
        coterie.predict(folder / "west", None, table(2), algorithm="local")
