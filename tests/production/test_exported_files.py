"""Exported files give what the framework gives, for each kind of model and of input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pandas as pd
import pytest
import torch
from PIL import Image
from stored import NAMES, SCHEMA, answers, federation_of, of_table, stack_of, store, table
from tiny_runs import tiny_run
from torch import Tensor, nn

import coterie
from coterie.contract import Predictor
from coterie.errors import CoterieError
from coterie.experiment.handover import handed_over
from coterie.federation.data import Normal
from coterie.models import ModelSpec, stack_candidates
from coterie.production.formats import FILES, RUNNERS, Format
from coterie.runs import RunDirectory, save_models

ALL: tuple[Format, ...] = ("torchscript", "torch-export", "onnx")


UNIT = Normal(torch.tensor([4e6, -2.0], dtype=torch.float64), torch.tensor([1e6, 0.25], dtype=torch.float64))


def check_files(folder: Path, raw: Tensor, expected: Tensor, formats: tuple[Format, ...] = ALL) -> None:
    """Every file gives the expected answers, for all inputs at once and for one alone."""
    for format in formats:
        run = RUNNERS[format](folder / FILES[format])
        for part in (slice(None), slice(0, 1)):
            torch.testing.assert_close(run(raw[part]), expected[part], rtol=0, atol=1e-5)


def test_pictures_of_bytes_are_scaled_and_normalised_inside(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (8, 2, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    normal = Normal(torch.tensor([0.4, 0.5]).reshape(2, 1, 1), torch.tensor([0.2, 0.3]).reshape(2, 1, 1))
    spec = ModelSpec("cnn", {"channels": [3], "hidden": 4, "batch_norm": True})
    federation = federation_of(pixels, scale=1 / 255, normal=normal)
    run, models = store(tmp_path / "run", federation, spec)
    (exported,) = coterie.export(run.path, "south")
    assert set(exported.files) == {*FILES.values(), "preprocessing.json", "README.md"}
    assert {path.name for path in exported.directory.iterdir()} == set(exported.files)
    expected = answers(federation, spec, models, 1).softmax(-1)
    check_files(exported.directory, pixels[4:], expected)
    session = onnxruntime.InferenceSession(str(exported.directory / "model.onnx"))
    (declared,) = session.get_inputs()
    assert (declared.name, declared.type, declared.shape) == ("inputs", "tensor(uint8)", ["batch", 2, 8, 8])
    state = torch.load(exported.directory / "model.pt", weights_only=True)
    assert all(torch.equal(state[name], tensor[1]) for name, tensor in models.tensors.items())


def test_sequences_through_a_gru(tmp_path: Path) -> None:
    series = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(1))
    spec = ModelSpec("gru", {"hidden": 4})
    federation = federation_of(series, 2, task="regression")
    run, models = store(tmp_path / "run", federation, spec)
    with pytest.raises(CoterieError, match="this is a regression"):
        coterie.export(run.path, "north", logits=True)
    (exported,) = coterie.export(run.path, "north")
    check_files(exported.directory, series[:4], answers(federation, spec, models, 0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_codes_of_characters(tmp_path: Path, dtype: torch.dtype) -> None:
    codes = torch.randint(0, 9, (8, 6), generator=torch.Generator().manual_seed(1)).to(dtype)
    spec = ModelSpec("char-gru", {"characters": 9, "embedding": 2, "hidden": 4})
    federation = federation_of(codes)
    run, models = store(tmp_path / "run", federation, spec)
    (exported,) = coterie.export(run.path, "north")
    assert set(exported.files) == {*FILES.values(), "preprocessing.json", "README.md"}
    check_files(exported.directory, codes[:4], answers(federation, spec, models, 0).softmax(-1))


def test_exported_files_answer_in_the_unit_of_the_data(tmp_path: Path) -> None:
    inputs = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(1))
    spec = ModelSpec("mlp", {"hidden": [4]})
    federation = federation_of(inputs, 2, task="regression")
    scaled = {part: replace(federation.split(part), target_normal=UNIT) for part in ("train", "validation", "test")}
    run, models = store(tmp_path / "run", replace(federation, **scaled), spec)
    (exported,) = coterie.export(run.path, "north")
    expected = UNIT.undone(answers(federation, spec, models, 0).double())
    raw = inputs[:4]
    for format in ALL:
        for part in (slice(None), slice(0, 1)):
            found = RUNNERS[format](exported.directory / FILES[format])(raw[part]).double()
            torch.testing.assert_close(found / UNIT.std, expected[part] / UNIT.std, rtol=0, atol=1e-5)
    for said in (
        coterie.predict(exported.directory, None, raw.numpy()),
        coterie.predict(run.path, "north", raw.numpy()),
    ):
        found = torch.tensor(said.iloc[:, 1:].to_numpy())
        torch.testing.assert_close(found / UNIT.std, expected / UNIT.std, rtol=0, atol=1e-5)
    state = torch.load(exported.directory / "model.pt", weights_only=True)
    assert set(state) == set(models.tensors)  # the bare network
    card = (exported.directory / "README.md").read_text()
    assert "the bare network of `model.pt` gives (value - 4e+06, -2) / 1e+06, 0.25." in card


def test_raw_columns_of_a_table_with_gaps_and_categories(tmp_path: Path) -> None:
    path = table(tmp_path)
    federation, spec = of_table(path), ModelSpec("mlp", {"hidden": [6]})
    run, models = store(tmp_path / "run", federation, spec, schemas={"schema": SCHEMA.as_dict()})
    (exported,) = coterie.export(run.path, "north")
    raw = torch.tensor(
        [
            [2015.1, 0, 1.0, 0],
            [2016.3, 1, torch.nan, 1],
            [2014.7, 2, -2.5, torch.nan],
            [2015.0, 2, torch.nan, 0],
            [2015.9, 0, 0, torch.nan],
            [2016.0, 1, 3.25, 1],
        ],
        dtype=torch.float64,
    )
    expected = answers(federation, spec, models, 0).softmax(-1)
    check_files(exported.directory, raw, expected)
    said = coterie.predict(exported.directory, None, path)
    torch.testing.assert_close(torch.tensor(said[["p_no", "p_yes"]].to_numpy()).float(), expected, rtol=0, atol=1e-5)
    assert list(said["class"]) == [["no", "yes"][place] for place in expected.argmax(1)]
    of_run = coterie.predict(run.path, "north", path)
    pd.testing.assert_frame_equal(said, of_run, rtol=0, atol=1e-5)
    text = (exported.directory / "README.md").read_text()
    assert "| 0 | `year` | number; (x - 2015.25) / 0.5 | no |" in text
    assert "| 3 | `sex` | category: 0 = f, 1 = m | NaN |" in text
    assert str(tmp_path) not in text


def test_each_client_may_have_a_schema_of_its_own(tmp_path: Path) -> None:
    path = table(tmp_path)
    federation, spec = of_table(path), ModelSpec("linear", {})
    tree = SCHEMA.as_dict()
    moved = {**tree, "features": [{**tree["features"][0], "mean": 2000.0, "std": 8.0}, *tree["features"][1:]]}
    clients = {"clients": {"north": tree, "south": moved}}
    run, models = store(tmp_path / "run", federation, spec, schemas=clients)
    north, south = (coterie.predict(run.path, name, path) for name in NAMES)
    expected = answers(federation, spec, models, 0).softmax(-1)
    torch.testing.assert_close(torch.tensor(north["p_yes"].to_numpy()).float(), expected[:, 1], rtol=0, atol=1e-6)
    inputs, _ = federation.train.client(1)
    inputs[:, 0] = (inputs[:, 0] * 0.5 + 2015.25 - 2000) / 8
    weight, bias = (models.tensors[name][1] for name in ("1.weight", "1.bias"))
    expected = (inputs @ weight.T + bias).softmax(-1)
    torch.testing.assert_close(torch.tensor(south["p_yes"].to_numpy()).float(), expected[:, 1], rtol=0, atol=1e-5)


def test_a_mixture_of_a_real_run_is_one_module(tmp_path: Path) -> None:
    """FedEM: loss and accuracy of the exported files are those that the run has measured."""
    result, federation = tiny_run(tmp_path)
    table = pd.read_parquet(result.directory / "clients.parquet")
    rows = table[(table.algorithm == "fedem") & (table.client == "client-02") & (table.split == "test")]
    measured = rows[rows["round"] == rows["round"].max()].set_index("metric")["value"]
    data = federation.test.select([2])
    inputs, targets = data.inputs[data.rows(torch.arange(10))], data.client(0)[1]  # inputs as they are stored
    (exported,) = coterie.export(result.directory, "client-02")
    assert exported.system == "fedem"
    state = torch.load(exported.directory / "model.pt", weights_only=True)
    assert state["weights"].sum() == pytest.approx(1, abs=1e-9)
    assert state["weights"].max() - state["weights"].min() > 1e-3, "the weights were learnt"
    for format in ALL:
        probabilities = RUNNERS[format](exported.directory / FILES[format])(inputs)
        assert nn.functional.nll_loss(probabilities.log(), targets) == pytest.approx(measured["loss"], abs=1e-5)
        assert (probabilities.argmax(1) == targets).double().mean() == pytest.approx(measured["accuracy"])
    card = (exported.directory / "README.md").read_text()
    assert "| model | mixture of 3 models `mlp`" in card
    assert f"| accuracy | {measured['accuracy']:.4g} |" in card
    logits = coterie.export(result.directory, "client-02", logits=True, format="torchscript", output=tmp_path / "l")
    found = RUNNERS["torchscript"](logits[0].directory / "model.ts.pt")(inputs)
    torch.testing.assert_close(found.softmax(-1), probabilities, rtol=0, atol=1e-5)


def test_a_candidate_without_weight_has_no_say_though_it_has_diverged(tmp_path: Path) -> None:
    inputs, spec = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), ModelSpec("linear", {})
    federation = federation_of(inputs)
    stack = stack_of(federation, spec)
    rows = stack.initial(7, 4, distinct=True)
    for tensor in rows.tensors.values():
        tensor[1] = torch.nan
    candidates = stack_candidates([rows[:2], rows[2:]])  # south's first is the one that is lost
    weights = torch.tensor([[0.25, 0.75], [0.0, 1.0]], dtype=torch.float64)
    run = RunDirectory.create(tmp_path / "run", "stored")
    facts = handed_over(federation, spec, Predictor(candidates, weights), federation.names)
    save_models(run, "federico", "", 0, federation.names, candidates.tensors, round=3, facts=facts)
    (exported,) = coterie.export(run.path, "south")
    expected = stack.forward(rows[3:].tensors, inputs[None, 4:])[0].softmax(-1).detach()
    check_files(exported.directory, inputs[4:], expected)
    assert "| model | mixture of 1 models `linear`" in (exported.directory / "README.md").read_text()


def test_the_card_compares_with_local_in_the_round_that_the_metric_of_the_run_chooses(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "algorithms": ["local", "fedavg"], "metric": "f1", "metrics": ["f1"], "report": "best_val", "evaluate_every": 1,
    }  # fmt: skip
    result, _ = tiny_run(tmp_path, **changes)
    path = result.directory / "clients.parquet"
    table = pd.read_parquet(path)
    alone = (table.algorithm == "local") & (table.split == "validation")
    for metric, best in (("accuracy", 1), ("f1", 2)):
        chosen = alone & (table.metric == metric)
        table.loc[chosen, "value"] = (table.loc[chosen, "round"] == best).astype(float)
    test = (table.algorithm == "local") & (table.split == "test") & (table.client == "client-02")
    table.loc[test, "value"] = table.loc[test, "round"] / 100
    table.to_parquet(path)
    (exported,) = coterie.export(result.directory, "client-02", algorithm="fedavg", format="state_dict")
    card = (exported.directory / "README.md").read_text()
    assert next(line for line in card.splitlines() if line.startswith("| f1")).endswith("| 0.02 |")


def test_models_of_newcomers_are_exported_from_their_folder(tmp_path: Path) -> None:
    series = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    federation, spec = federation_of(series), ModelSpec("linear", {})
    run, _ = store(tmp_path / "run", federation, spec)
    labelled = run.path / "adapted-1" / "labelled"
    labelled.mkdir(parents=True)
    _, models = store(labelled, federation, spec, algorithm="fedora")
    (exported,) = coterie.export(run.path / "adapted-1", "south", format="torchscript")
    assert exported.directory.parent == labelled / "exports"
    expected = answers(federation, spec, models, 1).softmax(-1)
    check_files(exported.directory, series[4:], expected, ("torchscript",))


class Undecided(nn.Module):
    """Its outputs depend on the number of inputs, which no trace can know."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        return self.head(x) * float(len(x))


def undecided(feature_shape: Any, classes: int) -> nn.Module:
    return Undecided(feature_shape[0], classes)


def test_a_file_that_gives_something_else_is_never_left(tmp_path: Path) -> None:
    federation = federation_of(torch.randn(8, 4))
    run, _ = store(tmp_path / "run", federation, ModelSpec("test_exported_files:undecided", {}))
    with pytest.raises(CoterieError, match="As torchscript the model gives other values than in PyTorch"):
        coterie.export(run.path, "north", format="torchscript", output=tmp_path / "out")
    assert not (tmp_path / "out" / "model.ts.pt").exists()


def test_classes_of_folders_keep_their_names(tmp_path: Path) -> None:
    """Names are in the order of the folders, which for numbers is not theirs: 1, 10, 2."""
    for client in ("ann", "bob"):
        for name, grey in (("2", 10), ("10", 120), ("1", 250)):
            (tmp_path / "pictures" / client / name).mkdir(parents=True)
            for i in range(8):
                Image.new("L", (4, 4), grey + i % 4).save(tmp_path / "pictures" / client / name / f"{i}.png")
    federation = {"source": "folder", "path": str(tmp_path / "pictures"), "size": 4, "grey": True}
    result, _ = tiny_run(tmp_path, federation=federation, algorithms=["local"], rounds=30)
    found = coterie.predict(result.directory, "ann", tmp_path / "pictures" / "bob" / "10", algorithm="local")
    assert set(found.columns) >= {"p_1", "p_10", "p_2"}
    assert (found["class"].astype(str) == "10").all()
