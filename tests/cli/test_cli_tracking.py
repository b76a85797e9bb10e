"""Trackers have what the history has: every number of every round, once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import TINY, assert_same_run, coterie, error_of, tiny

from coterie.config import load_config
from coterie.engines import RoundReport, Simulation
from coterie.experiment import Experiment
from tracked import Numbers, of_mlflow, of_tensorboard, of_the_history


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """The tiny experiment, of a method that notes something of itself, for both trackers."""
    text = TINY.replace("{name: ditto, lambda: 0.5}", "feddwa").replace("rounds: 4", "rounds: 6")
    path = tmp_path / "tiny.yaml"
    path.write_text(text + "checkpoint_every: 2\n")
    return path


BOTH = ("--track", "tensorboard", "--track", "mlflow")


def test_every_number_of_every_round_is_tracked(quick: Path, tmp_path: Path) -> None:
    result = coterie("run", quick, *BOTH, "-s", "seeds=[0, 1]", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "warning" not in result.output
    wanted = of_the_history(tmp_path / "out")
    assert {"test/accuracy", "test/accuracy_weighted", "validation/loss", "train/bytes_up_model", "seconds/train",
            "seconds/evaluate", "train/mean_self_weight"} <= {name for _, name, _ in wanted}  # fmt: skip
    assert of_tensorboard(tmp_path / "out") == wanted
    numbers, runs = of_mlflow(tmp_path / "out")
    assert numbers == wanted
    assert set(runs) == {"local/seed0", "local/seed1", "feddwa/seed0", "feddwa/seed1"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    about = runs["feddwa/seed1"]
    assert about.info.run_name == "feddwa, seed 1"
    settings = {"training.lr": "0.1", "model.hidden": "8", "federation.partition.clients": "4", "rounds": "6"}
    assert settings.items() <= about.data.params.items()
    assert about.data.tags["coterie.run"] == "out"


def test_a_killed_run_goes_on_in_the_same_tracked_run(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    coterie("run", quick, "--output", whole)
    advance = Simulation.advance

    def killed(simulation: Simulation) -> RoundReport:
        if simulation.algorithm.name == "feddwa" and simulation.round == 5:  # three rounds after its checkpoint
            raise KeyboardInterrupt
        return advance(simulation)

    monkeypatch.setattr(Simulation, "advance", killed)
    words = (*BOTH, "-s", "checkpoint_every=3", "--output", out)
    assert coterie("run", quick, *words).exit_code == 130
    monkeypatch.undo()
    numbers, runs = of_mlflow(out)
    assert max(round for folder, _, round in numbers if folder == "feddwa/seed0") == 5
    assert {folder: run.info.status for folder, run in runs.items()} == {
        "local/seed0": "FINISHED",
        "feddwa/seed0": "KILLED",
    }
    assert coterie("resume", out).exit_code == 0
    assert_same_run(whole, out)
    again, later = of_mlflow(out)
    assert {folder: run.info.run_id for folder, run in later.items()} == {
        folder: run.info.run_id for folder, run in runs.items()
    }
    assert later["feddwa/seed0"].info.status == "FINISHED"
    wanted = of_the_history(out)
    assert of_tensorboard(out) == wanted
    assert without_seconds(again) == without_seconds(wanted)  # the seconds are those of the first time
    assert again.keys() == wanted.keys()


def without_seconds(numbers: Numbers) -> Numbers:
    return {key: value for key, value in numbers.items() if not key[1].startswith("seconds/")}


def test_a_run_can_be_tracked_from_its_middle_on(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    advance = Simulation.advance

    def killed(simulation: Simulation) -> RoundReport:
        if simulation.round == 3:
            raise KeyboardInterrupt
        return advance(simulation)

    monkeypatch.setattr(Simulation, "advance", killed)
    assert coterie("run", quick, "-s", "algorithms=[local]", "--output", out).exit_code == 130
    monkeypatch.undo()
    assert not (out / "tracking").exists()
    with (out / "config.yaml").open("a") as file:
        file.write("tracking: {tensorboard: true}\n")
    assert coterie("resume", out).exit_code == 0
    assert of_tensorboard(out) == of_the_history(out)


def test_a_tracker_that_fails_is_told_of_and_the_run_goes_on(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    monkeypatch.setitem(os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    nobody = "tracking.mlflow.uri=http://127.0.0.1:9"
    result = coterie("run", quick, "--track", "tensorboard", "-s", nobody, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    warnings = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2
    (disk,) = (line for line in warnings if "TensorBoard" in line)
    assert "TensorBoard gets nothing more of this run, which goes on: OSError: [Errno 28] No space left" in disk
    assert any("MLflow gets nothing more" in line and "127.0.0.1" in line for line in warnings)
    coterie("run", quick, "--output", tmp_path / "plain")
    assert_same_run(tmp_path / "out", tmp_path / "plain")


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_library_is_named_before_anything_is_trained(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = error_of(coterie("run", tiny(tmp_path), "--track", name, "--output", tmp_path / "out"))
    assert message.endswith(f"pip install 'coterie[{name}]'.")
    assert message.startswith(f"tracking.{name} needs ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--track", "tensorbord"), "unknown key tracking.tensorbord: did you mean tracking.tensorboard?"),
        (("-s", "tracking.mlflow.url=x"), "unknown key tracking.mlflow.url: did you mean tracking.mlflow.uri?"),
        (
            ("-s", "tracking.mlflow=sqlite"),
            "tracking.mlflow must be a mapping of keys to values, not the text 'sqlite'",
        ),
        (("-s", "tracking.wandb.mode=offlin"), "did you mean offline?"),
        (("-s", "tracking.tensorboard=3"), "tracking.tensorboard must be true or false, not 3"),
    ],
)
def test_a_wrong_key_or_value_is_one_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in error_of(coterie("run", tiny(tmp_path), *words, "--output", tmp_path / "out"))


def test_the_short_option_keeps_what_the_configuration_says(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY + "tracking: {mlflow: {experiment: mine}}\n")
    result = coterie("run", path, *BOTH, "-s", "algorithms=[local]", "-s", "rounds=1", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert len(of_mlflow(tmp_path / "out", "mine")[1]) == 1
    assert of_tensorboard(tmp_path / "out")


def test_results_do_not_depend_on_it(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    tracked = Experiment(load_config(path, ["tracking.tensorboard=true"]))
    assert tracked.recipe() == Experiment(load_config(path)).recipe()
