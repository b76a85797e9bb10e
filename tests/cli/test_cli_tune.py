"""``coterie tune`` as a user types it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import coterie, error_of, rows_of, tiny

from coterie import load_config
from coterie.engines import Simulation


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tune_prints_the_trials_and_the_best_setting(tmp_path: Path) -> None:
    words = ["tune", tiny(tmp_path), "-a", "ditto", "--space", "lambda=0.1,1", "--space", "training.lr=0.01,0.1"]
    result = coterie(*words, "--rounds", "2", "--write-preset", tmp_path / "mine.yaml")
    assert result.exit_code == 0, result.output
    assert "grid search for ditto: up to 4 trials, into runs/tune-tiny-1" in result.stdout
    assert result.stdout.count("done ditto") == 4
    for word in ("validation accuracy", "best ditto: lambda: ", "coterie run runs/tune-tiny-1/best.yaml"):
        assert word in result.stdout
    assert coterie("run", "runs/tune-tiny-1/best.yaml", "-s", "rounds=1", "-o", "best", "--quiet").exit_code == 0
    assert {row["algorithm"] for row in rows_of(Path("best"))} == {"local", "ditto"}
    assert coterie("run", "mine.yaml", "--dry-run").exit_code == 0
    said = "LOCAL was not tuned, and training.lr may help it as much"
    assert said in result.stdout
    assert f"# {said}" in Path("mine.yaml").read_text()


def test_a_search_that_is_fair_to_local_says_nothing_of_it(tmp_path: Path) -> None:
    path, few = tiny(tmp_path), ["--rounds", "1", "--json"]
    both = coterie("tune", path, "-a", "ditto", "-a", "local", "--space", "training.lr=0.1,0.2", *few)
    options = coterie("tune", path, "-a", "ditto", "--space", "lambda=0.1,1", *few)
    assert [json.loads(result.stdout)["remarks"] for result in (both, options)] == [[], []]


def test_settings_of_local_that_is_not_tuned_are_kept(tmp_path: Path) -> None:
    own = "algorithms=[{name: local, training: {lr: 0.5}}, ditto]"
    result = coterie("tune", tiny(tmp_path), "-a", "ditto", "--space", "lambda=0.1", "--rounds", "1", "-s", own)
    assert result.exit_code == 0, result.output
    best = load_config("runs/tune-tiny-1/best.yaml")
    assert [entry.name for entry in best.algorithms] == ["local", "ditto"]
    assert best.training_of(best.algorithms[0]).lr == 0.5


def test_tune_for_programs(tmp_path: Path) -> None:
    result = coterie("tune", tiny(tmp_path), "-a", "ditto", "--space", "lambda=0.1,1", "--rounds", "1", "--json")
    found = json.loads(result.stdout)
    assert [trial["lambda"] for trial in found["trials"]] == [0.1, 1]
    assert set(found["best"]) == {"ditto"}
    assert found["metric"] == "validation_accuracy"


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["tune", tiny(tmp_path), "-a", "ditto", "--space", "lambda=0.1,1", "--quiet"]
    advance, done = Simulation.advance, []

    def counted(self: Simulation) -> Any:
        done.append(1)
        if len(done) == 5:
            signal.raise_signal(signal.SIGINT)
        return advance(self)

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "advance", counted)
        result = coterie(*words)
    assert result.exit_code == 130
    assert "continue with: coterie tune --resume runs/tune-tiny-1" in result.stderr
    result = coterie("tune", "--resume", "runs/tune-tiny-1")
    assert result.exit_code == 0
    assert result.stdout.count("done ditto") == 1
    assert "up to 2 trials, 1 of them done" in result.stdout
    assert len(json.loads(coterie("tune", "--resume", "runs/tune-tiny-1", "--json").stdout)["trials"]) == 2


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    assert error_of(coterie("tune", path)).startswith("tune.space is missing: say what to search")
    assert "did you mean lambda?" in error_of(coterie("tune", path, "-a", "ditto", "--space", "lamda=1"))
    assert "give KEY=VALUES" in error_of(coterie("tune", path, "--space", "lambda"))
    assert "is given twice" in error_of(coterie("tune", path, "--space", "lambda=1", "--space", "lambda=2"))
    assert "leave out what else describes one" in error_of(coterie("tune", path, "--resume", "runs/x"))
    assert "leave out what else describes one" in error_of(coterie("tune", "--resume", "runs/x", "--device", "cpu"))
    assert "leave out what else describes one" in error_of(coterie("tune", "--resume", "runs/x", "--trials", "0"))
    words = ["tune", path, "-a", "ditto", "--space", "lambda=1", "--write-preset"]
    assert "an experiment is a file that ends in .yaml" in error_of(coterie(*words, "results.parquet"))
    (tmp_path / "file").touch()
    assert "file" in error_of(coterie(*words, "file/best.yaml"))
    assert not (tmp_path / "runs").exists(), "nothing was searched"
    assert "There is no run directory" in error_of(coterie("tune", "--resume", "runs/x"))
    bad = ["-s", "tune.space={lambda: [1]}", "-s", "tune.trails=3"]
    assert "unknown key tune.trails: did you mean tune.trials?" in error_of(coterie("tune", path, "-a", "ditto", *bad))
    all_fail = coterie("tune", path, "-a", "local", "--space", "training.lr=1e25", "--rounds", "1", "--quiet")
    assert all_fail.exit_code == 2
    assert "every trial failed of local: seed 0: " in all_fail.stderr


def test_what_programs_read_is_strict_json(tmp_path: Path) -> None:
    """An infinity is spelled as in YAML, where a setting is read again."""
    result = coterie("tune", tiny(tmp_path), "-a", "fedora", "--space", "alpha=0.5,.inf", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.output

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(result.stdout, parse_constant=refuse)
    assert [trial["alpha"] for trial in found["trials"]] == [0.5, ".inf"]
