"""A run, its directory, and what it prints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from cli_helpers import assert_same_run, coterie, error_of, rows_of, tiny

import coterie as package
from coterie.experiment import estimate
from coterie.models.factory import build_model
from coterie.runs import RunDirectory, load_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_prints_a_table_and_leaves_a_complete_directory(here: Path) -> None:
    result = coterie("run", tiny(here), "-s", "seeds=[0, 1]")
    assert result.exit_code == 0, result.output
    assert "Everything about this run is in runs/tiny-1" in result.stdout
    assert result.stdout.count("done ") == 4
    for word in ("tiny", "Accuracy", "R-Acc", "PTR", "ditto", "best mean validation accuracy"):
        assert word in result.stdout
    run = here / "runs" / "tiny-1"
    for name in (
        "config.yaml",
        "environment.json",
        "history.parquet",
        "history.csv",
        "clients.parquet",
        "timings.parquet",
    ):
        assert (run / name).exists()
    assert [row["algorithm"] for row in rows_of(run)] == ["local", "ditto"]
    assert rows_of(run)[0]["ptr"] == 1.0
    assert len(list(run.glob("models/ditto/seed1/*.safetensors"))) == 4
    assert not list(run.glob("checkpoints/**/*.pt"))
    coterie("run", tiny(here))
    assert (here / "runs" / "tiny-2").is_dir()


def test_the_history_has_the_declared_points_and_the_traffic(here: Path) -> None:
    coterie("run", tiny(here), "-s", "rounds=5", "--output", "out")
    history, clients = (pd.read_parquet(here / "out" / f"{name}.parquet") for name in ("history", "clients"))
    accuracy = history.query("metric == 'accuracy' and split == 'test' and algorithm == 'ditto'")
    assert list(accuracy["round"]) == [0, 2, 4, 5]
    sent = history.query("metric == 'bytes_up:model' and phase == 'train' and algorithm == 'ditto'")
    one_model = 4 * (64 * 8 + 8 + 8 * 10 + 10)
    assert list(sent["value"]) == [4 * one_model] * 5
    by_client = clients.query("metric == 'bytes_up:model' and phase == 'train' and algorithm == 'ditto'")
    assert list(by_client["value"]) == [5 * one_model] * 4
    assert list(by_client["client"]) == [f"client-0{i}" for i in range(4)]
    (row,) = [row for row in rows_of(here / "out") if row["algorithm"] == "ditto"]
    assert row["bytes_up"] == 5 * 4 * one_model


def test_local_is_run_where_a_gain_is_to_be_reported(here: Path) -> None:
    coterie("run", tiny(here), "-s", "algorithms=[ditto]", "--output", "out")
    rows = {row["algorithm"]: row for row in rows_of(here / "out")}
    assert list(rows) == ["local", "ditto"]
    assert rows["ditto"]["gain_mean"] is not None
    coterie("run", tiny(here), "-s", "algorithms=[ditto, local]", "--output", "listed")
    assert rows_of(here / "listed")[1]["gain_mean"] == rows["ditto"]["gain_mean"]


def test_the_saved_models_are_those_of_the_reported_round(here: Path) -> None:
    coterie("run", tiny(here), "-s", "rounds=12", "-s", "training.epochs=10", "--output", "out")
    clients = pd.read_parquet(here / "out" / "clients.parquet")
    federation = package.Experiment(package.load_config(tiny(here))).federation(0)
    run = RunDirectory.open(here / "out")
    for row in rows_of(here / "out"):
        chosen = row["chosen_rounds"]
        round_of_seed = chosen["0"] if isinstance(chosen, dict) else chosen[0]
        for i, name in enumerate(federation.names):
            model = load_model(run, row["algorithm"], row["variant"], 0, name)
            inputs, targets = federation.test.client(i)
            network = build_model("mlp", federation.feature_shape, 10, hidden=[8])
            network.load_state_dict(model)
            outputs = network(inputs)
            hits = float((outputs.argmax(1) == targets).double().mean())
            stored = clients.query(
                f"algorithm == '{row['algorithm']}' and round == {round_of_seed} and split == 'test' "
                f"and metric == 'accuracy' and client == '{name}'"
            )
            assert stored["value"].item() == pytest.approx(hits)


def test_two_entries_of_one_method_are_told_apart(here: Path) -> None:
    entries = "algorithms=[{name: ditto, lambda: 0.1}, {name: ditto, lambda: 1.0, label: firm}]"
    result = coterie("run", tiny(here), "-s", entries, "--output", "out")
    assert result.exit_code == 0, result.output
    rows = rows_of(here / "out")
    assert [(row["algorithm"], row["variant"]) for row in rows[1:]] == [
        ("ditto", "lambda=0.1"),
        ("ditto", "lambda=1.0"),
    ]
    assert rows[2]["label"] == "firm"
    assert (here / "out" / "models" / "ditto-lambda=0.1").is_dir()


def test_same_seed_same_run_and_the_stored_configuration_repeats_it(here: Path) -> None:
    for output in ("one", "two"):
        coterie("run", tiny(here), "--output", output)
    assert_same_run(here / "one", here / "two")
    coterie("run", "one/config.yaml", "--output", "three")
    assert_same_run(here / "one", here / "three")


def test_python_and_command_line_do_the_same(here: Path) -> None:
    coterie("run", tiny(here), "-s", "training.lr=0.05", "--output", "cli")
    result = package.run(tiny(here), ["training.lr=0.05"], output="python")
    assert_same_run(here / "cli", result.directory)
    assert result.rows[1]["accuracy_mean"] == rows_of(here / "cli")[1]["accuracy_mean"]
    config = package.load_config(tiny(here))
    again = package.run(config, ["training.lr=0.05"], output="ready")
    assert_same_run(result.directory, again.directory)


def test_partial_participation_and_absent_clients(here: Path) -> None:
    words = ["-s", "participation=0.5", "-s", "absent={1: [client-00, client-01, client-02, client-03]}"]
    result = coterie("run", tiny(here), *words, "--output", "out")
    assert result.exit_code == 0, result.output
    sent = pd.read_parquet(here / "out" / "history.parquet").query(
        "metric == 'bytes_up:model' and algorithm == 'ditto'"
    )
    assert 1 not in set(sent["round"])
    assert all(sent["value"] == 2 * 4 * (64 * 8 + 8 + 8 * 10 + 10))


def test_without_models(here: Path) -> None:
    coterie("run", tiny(here), "-s", "save_models=false", "--output", "out")
    assert not list((here / "out").glob("models/**/*.safetensors"))


def test_quiet_prints_the_table_only(here: Path) -> None:
    result = coterie("run", tiny(here), "--quiet")
    assert "done " not in result.stdout
    assert "Accuracy" in result.stdout


def test_overwrite_replaces_a_run(here: Path) -> None:
    coterie("run", tiny(here), "--output", "out", "-s", "algorithms=[local, fedavg]")
    assert error_of(coterie("run", tiny(here), "--output", "out"))
    assert coterie("run", tiny(here), "--output", "out", "--overwrite").exit_code == 0
    assert not (here / "out" / "models" / "fedavg").exists()
    assert [row["algorithm"] for row in rows_of(here / "out")] == ["local", "ditto"]


def test_a_dry_run_prints_configuration_and_costs_and_writes_nothing(here: Path) -> None:
    path = tiny(here)
    result = coterie("run", path, "--dry-run")
    assert result.exit_code == 0, result.output
    for word in ("lr: 0.1", "executor: stacked", "Estimate", "time", "memory", "all, 1 seed"):
        assert word in result.stdout
    assert list(here.iterdir()) == [path]


def test_a_dry_run_counts_the_folds_of_a_guard(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCAL and the guarded method once more for each fold."""
    monkeypatch.setattr(estimate, "measure", lambda *_: estimate.Cost(10.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    printed = coterie("run", tiny(here), "--dry-run", "-s", "guard={folds: 2}").stdout
    rows = {line.split("  ")[0]: line.split() for line in printed.splitlines() if " s " in f"{line} "}
    assert rows["guard, 2 folds"][3:5] == ["40", "s"]
    assert rows["all, 1 seed"][3:5] == ["60", "s"]
    assert "guard," not in coterie("run", tiny(here), "--dry-run", "-s", "guard={folds: 0}").stdout


def test_a_dry_run_of_models_that_are_not_saved(here: Path) -> None:
    result = coterie("run", tiny(here), "--dry-run", "-s", "save_models=false", "-s", "rounds=1")
    assert result.exit_code == 0, result.output
    assert "0 bytes" in result.stdout


def test_a_method_that_diverges_leaves_the_others_their_results(here: Path) -> None:
    entries = "algorithms=[local, {name: fedavg, training: {lr: 1.0e30}}, ditto]"
    result = coterie("run", tiny(here), "-s", entries, "--output", "out")
    assert result.exit_code == 2
    message = result.stderr.strip().splitlines()[-1]
    assert "fedavg seed 0, round " in message
    assert "client-00" in message
    rows = {row["algorithm"]: row for row in rows_of(here / "out")}
    assert rows["ditto"]["accuracy_mean"] > 0
    assert rows["fedavg"]["failed_clients"]
    assert "ditto" in result.stdout
    assert all(math.isfinite(row["accuracy_mean"]) for row in rows.values())
    text = (here / "out" / "summary.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)


@pytest.mark.parametrize("wanted", ["loop", "fastest"])
def test_executor_and_workers_are_options(wanted: str, here: Path) -> None:
    coterie("run", tiny(here), "-o", "out", "--executor", wanted, "--workers", 1)
    stored = RunDirectory.open(here / "out").config.read_text(encoding="utf-8")
    executor = next(line.split(": ")[1] for line in stored.splitlines() if line.startswith("executor:"))
    assert executor == "loop" if wanted == "loop" else executor in ("stacked", "vmap", "loop")  # what was chosen
    assert "workers: 1" in stored
    assert "executor must be" in error_of(coterie("run", tiny(here), "-o", "bad", "--executor", "quick"))
