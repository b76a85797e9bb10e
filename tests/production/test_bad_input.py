"""One clear sentence for what is not there, damaged, or not what the model takes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from stored import HEADER, ROWS, SCHEMA, federation_of, of_table, store, table
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.errors import CoterieError, CoterieWarning
from coterie.models import ModelSpec
from coterie.production.choice import choose
from coterie.runs import RunDirectory, read_model, save_models

LINEAR = ModelSpec("linear", {})


def command(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def error_of(*words: str | Path) -> str:
    """What the command says on stderr, ending with code 2."""
    result = command(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    return str(result.stderr).removeprefix("error: ").strip()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Models of two clients with inputs of four numbers, of LOCAL and Ditto."""
    federation = federation_of(torch.randn(8, 4))
    store(tmp_path / "run", federation, LINEAR)
    store(tmp_path / "run", federation, LINEAR, algorithm="local")
    return tmp_path / "run"


@pytest.fixture
def tabular(tmp_path: Path) -> Path:
    store(tmp_path / "tabular", of_table(table(tmp_path)), LINEAR, schemas={"schema": SCHEMA.as_dict()})
    return tmp_path / "tabular"


def test_clients_methods_seeds_and_formats_that_there_are_not(run: Path) -> None:
    assert error_of("export", run, "--client", "nroth") == "There is no client nroth: did you mean north?"
    assert error_of("export", run, "--client", "zzz") == "There is no client zzz: there are north, south."
    assert "did you mean ditto?" in error_of("export", run, "--client", "north", "-a", "dito")
    assert "there are models of the seeds 0." in error_of("export", run, "--client", "north", "--seed", "3")
    assert "did you mean onnx?" in error_of("export", run, "--client", "north", "--format", "onx")
    store(run, federation_of(torch.randn(8, 4)), LINEAR, algorithm="apfl")
    said = error_of("export", run, "--client", "north")
    assert said.endswith("choose one by --algorithm: apfl, ditto.")
    assert "name a --client" in error_of("predict", run, "x.npz", "-a", "ditto")
    assert "There is no folder" in error_of("predict", run / "nowhere", "x.npz")


def test_a_folder_of_one_client_needs_no_name_and_a_guard_is_found_by_its_usual_name(run: Path) -> None:
    store(run, federation_of(torch.randn(8, 4)), LINEAR, algorithm="fedavg-guard")
    (run / "models" / "fedavg-guard" / "seed0" / "south.safetensors").unlink()
    (chosen,) = choose(run, None, "fedavg+guard", None)
    assert (chosen.system, chosen.client) == ("fedavg-guard", "north")


def test_places_without_models(tmp_path: Path) -> None:
    assert "There is no folder" in error_of("export", tmp_path / "nowhere", "--client", "a")
    assert "is not a run directory" in error_of("export", tmp_path, "--client", "a")
    empty = RunDirectory.create(tmp_path / "empty", "x").path
    assert "run it again with save_models: true" in error_of("export", empty, "--client", "a")


def test_damaged_and_old_models(run: Path) -> None:
    file = run / "models" / "ditto" / "seed0" / "north.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    assert "north.safetensors is damaged" in error_of("export", run, "--client", "north")
    file.write_bytes(b"")
    assert "north.safetensors is damaged" in error_of("predict", run, "x.npz", "--client", "north")
    save_models(RunDirectory(run), "ditto", "", 0, ["north"], {"1.weight": torch.zeros(1, 3, 4)})
    assert "saved by an earlier version" in error_of("export", run, "--client", "north")


def test_a_model_of_other_code(run: Path) -> None:
    federation = federation_of(torch.randn(8, 4))
    _, models = store(run, federation, LINEAR, algorithm="apfl")
    facts: dict[str, Any] = {"model": {"name": "mlp", "options": {}}, "task": "classification", "classes": 3}
    facts["inputs"] = {"shape": [4], "dtype": "float32"}
    save_models(RunDirectory(run), "apfl", "", 0, ["north", "south"], models.tensors, facts=[facts, facts])
    assert "is no mlp with these options" in error_of("export", run, "--client", "north", "-a", "apfl")


def test_folders_of_somebody_else_are_not_touched(run: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "README.md").write_text("mine")
    said = error_of("export", run, "--client", "north", "-o", tmp_path / "thesis")
    assert said.endswith("exists and is no export: choose another --output.")
    assert (tmp_path / "thesis" / "README.md").read_text() == "mine"


def test_without_the_libraries(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else found(name, *rest))
    said = error_of("export", run, "--client", "north", "--format", "onnx")
    assert said == "Writing ONNX needs onnx, which is not installed: pip install 'coterie[export]'."


def test_an_export_that_fails_keeps_the_earlier_one(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("export", run, "--client", "north", "-o", tmp_path / "out", "--format")
    assert command(*words, "torchscript").exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(before) == ["README.md", "model.ts.pt", "preprocessing.json"]
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else found(name, *rest))
    assert "Writing ONNX needs onnx" in error_of(*words, "onnx")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left on device" in error_of(*words, "state_dict")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert command(*words, "state_dict").exit_code == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "model.pt", "preprocessing.json"]


def test_an_export_stands_alone_and_is_replaced_whole(run: Path, tmp_path: Path) -> None:
    result = command("export", run, "--client", "all", "--format", "torchscript", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    north = tmp_path / "out" / "north"
    assert sorted(path.name for path in north.iterdir()) == ["README.md", "model.ts.pt", "preprocessing.json"]
    shutil.rmtree(run)
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4)))
    result = command("predict", north, tmp_path / "x.npz", "-o", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    answers = pd.read_csv(tmp_path / "p.csv")
    for name, read in (("p.parquet", pd.read_parquet), ("p.csv.gz", pd.read_csv)):
        assert command("predict", north, tmp_path / "x.npz", "-o", tmp_path / name).exit_code == 0
        pd.testing.assert_frame_equal(read(tmp_path / name).astype({"class": int}), answers)
    assert "answers are a table" in error_of("predict", north, tmp_path / "x.npz", "-o", tmp_path / "p.txt")
    assert list(answers) == ["row", "class", "p_0", "p_1", "p_2"]
    assert answers[["p_0", "p_1", "p_2"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert "is the model of north, not of south" in error_of("predict", north, tmp_path / "x.npz", "--client", "south")
    np.savez(tmp_path / "pfllib.npz", data=np.array({"x": np.ones((2, 4)), "y": np.zeros(2, dtype=int)}))
    assert command("predict", north, tmp_path / "pfllib.npz", "-o", tmp_path / "q.csv").exit_code == 0
    assert (tmp_path / "q.csv").read_text() == (tmp_path / "p.csv").read_text()
    np.savez(tmp_path / "code.npz", data=np.array({"x": print}))
    assert "code.npz is damaged" in error_of("predict", north, tmp_path / "code.npz")
    (north / "model.ts.pt").write_bytes(b"rubbish")
    assert "model.ts.pt is damaged" in error_of("predict", north, tmp_path / "x.npz")
    (north / "model.ts.pt").unlink()
    assert "holds no file that can be run" in error_of("predict", north, tmp_path / "x.npz")
    (north / "preprocessing.json").write_text("{}")
    assert "preprocessing.json is missing or damaged" in error_of("predict", north, tmp_path / "x.npz")


def test_an_export_is_no_model_but_its_own(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("export", run, "--client", "north", "-a", "ditto", "--format", "torchscript", "-o", "out")
    assert command(*words).exit_code == 0
    np.savez("x.npz", x=np.ones((2, 4)))
    assert error_of("predict", "out", "x.npz", "-a", "local") == "out is a model of ditto: leave out --algorithm local."
    assert error_of("predict", "out", "x.npz", "--seed", "3") == "out is a model of seed 0: leave out --seed 3."
    assert command("predict", "out", "x.npz", "--client", "north", "-a", "ditto", "--seed", "0").exit_code == 0


def test_answers_replace_neither_the_data_nor_results_of_the_run(tabular: Path, tmp_path: Path) -> None:
    data = table(tmp_path)
    before = data.read_bytes()
    said = error_of("predict", tabular, data, "--client", "north", "-o", data)
    assert said == f"{data} is the table that is read, and would be lost; choose another --output."
    link = tmp_path / "link.csv"
    link.symlink_to(data)
    assert "is the table that is read" in error_of("predict", tabular, data, "--client", "north", "-o", link)
    assert data.read_bytes() == before
    for name in ("history.csv", "models/ditto/answers.csv"):
        said = error_of("predict", tabular, data, "--client", "north", "-o", tabular / name)
        assert said == f"{tabular / name} belongs to the results in {tabular}; choose another --output."
        assert not (tabular / name).exists()
    said = error_of("predict", tabular, data, "--client", "north", "-o", "answers.csv", "--json")
    assert said == "--json prints the answers, and --output answers.csv writes them: give one of them."
    assert command("predict", tabular, data, "--client", "north", "--json").exit_code == 0
    for place in (tmp_path / "answers.csv", tabular / "answers.csv"):
        for _ in range(2):
            assert command("predict", tabular, data, "--client", "north", "-o", place).exit_code == 0


def test_every_difference_of_a_table_has_a_sentence(tabular: Path, tmp_path: Path) -> None:
    rows = [*ROWS, "unknown,b,x,f,no", ",b,y,f,no"]
    path = table(tmp_path, rows, HEADER.replace("ward", "wards"))
    assert error_of("predict", tabular, path, "--client", "north").splitlines() == [
        f"{path} has no column 'ward': is it the one called 'wards'?",
        f"{path}, line 9: 'year' is missing, and the model was trained without gaps there: fill it in.",
        f"{path}, line 8: 'year' should be a number, not 'unknown'.",
        f"{path}, line 8: 'dose' should be a number, not 'x' (and in one more row).",
    ]


def test_an_unseen_category_is_told_and_counts_as_none(tabular: Path, tmp_path: Path) -> None:
    path = table(tmp_path, [*ROWS, "2015,c,1,f,no", "2015,d,1,f,no"])
    with pytest.warns(
        CoterieWarning, match=r"line 8: 'ward' is c, d \(and in one more row\), which the model has never"
    ):
        answers = coterie.predict(tabular, "north", path)
    assert answers["p_yes"].iloc[6] == answers["p_yes"].iloc[7]
    with pytest.warns(CoterieWarning, match="the table, row 7: 'ward' is c"):
        again = coterie.predict(tabular, "north", pd.read_csv(path, dtype=str, keep_default_na=False))
    pd.testing.assert_frame_equal(answers, again)


def test_data_of_another_kind(run: Path, tabular: Path, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"bytes": np.ones((2, 4)), "shape": np.ones((2, 5)), "gap": np.full((2, 4), np.nan)}
    for name, values in arrays.items():
        np.savez(tmp_path / f"{name}.npz", x=values)
    store(tmp_path / "bytes", federation_of(torch.ones(8, 4, dtype=torch.uint8)), LINEAR)

    def said(run: Path, data: str) -> str:
        return error_of("predict", run, tmp_path / data, "--client", "north", "-a", "ditto")

    assert "bytes 0 to 255 are expected" in said(tmp_path / "bytes", "bytes.npz")
    assert "has the shape (2, 5) where (n, 4) is expected" in said(tmp_path / "bytes", "shape.npz")
    assert "is none of what can be predicted from" in said(tmp_path / "bytes", "x.txt")
    assert "takes no pictures" in said(tmp_path / "bytes", "bytes")
    assert "takes a table with columns year, ward, dose, sex" in said(tabular, "shape.npz")
    (tabular / "schemas" / "seed0.json").unlink()
    assert "is a table, but the model of north takes arrays" in said(tabular, "patients.csv")
    (tabular / "schemas" / "seed0.json").write_text('{"schema": {}}')
    assert "seed0.json is damaged" in said(tabular, "shape.npz")
    with pytest.raises(CoterieError, match="row 1 holds NaN"):
        coterie.predict(run, "north", arrays["gap"])


def test_codes_that_the_model_does_not_know(tmp_path: Path) -> None:
    """By the run, and by an export of it."""
    codes = torch.randint(0, 9, (8, 6), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    spec = ModelSpec("char-gru", {"characters": 9, "embedding": 2, "hidden": 4})
    store(tmp_path / "text", federation_of(codes), spec)
    coterie.export(tmp_path / "text", "north", format="torchscript", output=tmp_path / "export")
    for value in (9, -1, 2.5):
        np.savez(tmp_path / "x.npz", x=np.where(np.arange(12).reshape(2, 6) == 8, value, 3))
        sentence = f"{tmp_path}/x.npz: row 2 holds {value} where codes 0 to 8 are expected, as in training."
        assert error_of("predict", tmp_path / "text", tmp_path / "x.npz", "--client", "north") == sentence
        assert error_of("predict", tmp_path / "export", tmp_path / "x.npz") == sentence


def test_folders_of_pictures(tmp_path: Path) -> None:
    from PIL import Image

    federation = federation_of(torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8), scale=1 / 255)
    run, _ = store(tmp_path / "run", federation, LINEAR)
    (tmp_path / "pictures" / "new").mkdir(parents=True)
    assert "holds no pictures" in error_of("predict", run.path, tmp_path / "pictures", "--client", "north")
    pixels = federation.train.inputs[0].permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(tmp_path / "pictures" / "new" / "a.png")
    answers = coterie.predict(run.path, "north", tmp_path / "pictures")
    assert list(answers["file"]) == ["new/a.png"]
    expected = coterie.predict(run.path, "north", federation.train.inputs[:1])
    pd.testing.assert_frame_equal(answers.drop(columns="file"), expected.drop(columns="row"))


def test_models_that_nobody_has_trained_are_told_of(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4)))
    (run / "environment.json").write_text("{}")
    coterie.predict(run, "north", tmp_path / "x.npz", algorithm="ditto")
    file = run / "models" / "ditto" / "seed0" / "north.safetensors"
    facts = read_model(file.parent, "north")
    save_file(facts.tensors, file, metadata={"coterie": json.dumps({**facts.facts, "round": 0})})
    with pytest.warns(CoterieWarning, match="ditto, seed 0: the reported round is 0"):
        coterie.predict(run, "north", tmp_path / "x.npz", algorithm="ditto")


def test_numbers_too_large_to_compute_with(tmp_path: Path, tabular: Path) -> None:
    rows = pd.DataFrame([row.split(",") for row in ROWS], columns=HEADER.split(","))
    rows.loc[1, "year"] = "1e60"
    rows.to_csv(tmp_path / "new.csv", index=False)
    said = error_of("predict", tabular, tmp_path / "new.csv", "--client", "north")
    assert "line 3: 'year' is 1e60, which is too large to compute with: correct it." in said
