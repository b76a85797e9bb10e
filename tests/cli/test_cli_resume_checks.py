"""Resuming refuses whatever would mix results: another process, another configuration, tables that lack rounds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from cli_helpers import TINY, assert_same_run, coterie, error_of, rows_of

from coterie.errors import CoterieError
from coterie.experiment import Experiment, resume, run, session
from coterie.runs import RunDirectory, locked


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(TINY)
    assert coterie("run", folder / "tiny.yaml", "--output", folder / "out").exit_code == 0
    return folder / "out"


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, stopped in LOCAL's third round."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    noted = session.Session.noted

    def stop(self: session.Session, job: object, report: object) -> bool:
        noted(self, job, report)  # type: ignore[arg-type]
        if report.round == 3:  # type: ignore[attr-defined]
            self.stop.number = 2
        return self.stop.number is not None

    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "noted", stop)
        assert coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "out").exit_code == 130
    return tmp_path / "out"


def test_it_continues_as_if_nothing_had_happened(stopped: Path, whole: Path) -> None:
    assert coterie("resume", stopped).exit_code == 0
    assert_same_run(whole, stopped)


def test_two_processes_do_not_work_in_one_directory(stopped: Path, whole: Path) -> None:
    with locked(RunDirectory.open(stopped)):
        assert error_of(coterie("resume", stopped)) == (
            f"{stopped} is being worked on by another process: wait for it, or stop it."
        )
    assert coterie("resume", stopped).exit_code == 0
    assert_same_run(whole, stopped)


def test_overwrite_does_not_clear_what_another_process_works_on(stopped: Path, tmp_path: Path, whole: Path) -> None:
    with locked(RunDirectory.open(stopped)):
        said = error_of(coterie("run", tmp_path / "tiny.yaml", "--output", stopped, "--overwrite"))
        assert said == f"{stopped} is being worked on by another process: wait for it, or stop it."
    assert coterie("resume", stopped).exit_code == 0  # nothing was cleared
    assert_same_run(whole, stopped)


def test_a_lock_ends_with_its_process(stopped: Path) -> None:
    code = (
        f"from coterie.runs import *\nwith locked(RunDirectory.open({str(stopped)!r})): print(1, flush=True); input()"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert "worked on by another process" in error_of(coterie("resume", stopped))
        process.kill()
    time.sleep(0.1)
    assert coterie("resume", stopped).exit_code == 0


@pytest.mark.parametrize("name", ["history.parquet", "clients.parquet", "timings.parquet"])
def test_a_table_that_is_missing_is_not_passed_over(stopped: Path, name: str) -> None:
    (stopped / name).unlink()
    message = error_of(coterie("resume", stopped))
    assert "end before the checkpoint of local, seed 0 (round 3)" in message
    assert str(stopped / "checkpoints" / "local" / "seed0.pt") in message


@pytest.mark.parametrize(
    ("old", "new", "key"), [("lr: 0.1", "lr: 0.2", "training"), ("rounds: 4", "rounds: 6", "rounds")]
)
def test_a_changed_configuration_is_named(stopped: Path, old: str, new: str, key: str) -> None:
    text = (stopped / "config.yaml").read_text()
    assert old in text
    (stopped / "config.yaml").write_text(text.replace(old, new))
    assert f"config.yaml changed after the run had begun ({key})" in error_of(coterie("resume", stopped))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("lambda: 0.5", "lambda: 0.6", "lambda of ditto"),
        ("lambda: 0.5", "lambda: 0.5, training: {lr: 0.2}", "training.lr of ditto"),
    ],
)
def test_a_changed_method_is_named(whole: Path, tmp_path: Path, old: str, new: str, key: str) -> None:
    """Even where its other seeds are over, since all seeds of a system are averaged."""
    copy = Path(shutil.copytree(whole, tmp_path / "out"))
    text = (copy / "config.yaml").read_text()
    assert old in text
    (copy / "config.yaml").write_text(text.replace(old, new).replace("seeds: [0]", "seeds: [0, 1]"))
    message = error_of(coterie("resume", copy))
    assert f"config.yaml changed after the run had begun ({key}), and results of both would be mixed" in message


def test_a_method_that_has_not_begun_may_be_changed_or_come_in_addition(stopped: Path) -> None:
    """Nothing of it would be mixed, and an infinity is a value like any other."""
    text = (stopped / "config.yaml").read_text()
    more = text.replace("lambda: 0.5}", "lambda: 0.6}\n- {name: fedora, alpha: .inf}")
    assert more != text
    (stopped / "config.yaml").write_text(more)
    assert coterie("resume", stopped).exit_code == 0
    (stopped / "config.yaml").write_text(more.replace("alpha: .inf", "alpha: 2.0"))
    assert "(alpha of fedora released)" in error_of(coterie("resume", stopped))
    (stopped / "config.yaml").write_text(text.replace("- {name: ditto, lambda: 0.5}\n", ""))
    assert coterie("resume", stopped).exit_code == 0


def test_records_of_earlier_versions_know_no_methods(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "out"))
    record = copy / "checkpoints" / "progress.json"
    content = json.loads(record.read_text())
    assert content.pop("methods").keys() == {"local", "ditto"}
    record.write_text(json.dumps(content))
    assert coterie("resume", copy).exit_code == 0


def test_methods_that_were_taken_out_are_not_in_the_summary(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "out"))
    text = (copy / "config.yaml").read_text()
    start = text.index("algorithms:")
    (copy / "config.yaml").write_text(text[:start] + "algorithms: [local]\n" + text[text.index("rounds:") :])
    assert [row["algorithm"] for row in resume(copy).rows] == ["local"]


def test_what_diverged_is_said_again(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY.replace("lr: 0.1", "lr: 1.0e+30"))
    first = coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "out")
    again = coterie("resume", tmp_path / "out")
    assert first.exit_code == again.exit_code == 2
    assert "not every run reached its end" in first.stderr
    assert again.stderr.splitlines()[-1] == first.stderr.splitlines()[-1]


def test_a_strength_that_overshoots_ends_its_own_run_only(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY.replace("[local,", "[local, fedavg,").replace("0.5", "50.0"))
    result = coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "a proximal strength of 50 times the learning rate 0.1 exceeds 1" in result.stderr
    failures = pd.read_csv(tmp_path / "out" / "failures.csv")
    assert set(failures.algorithm) == {"ditto"}
    assert {"local", "fedavg"} <= {row["algorithm"] for row in rows_of(tmp_path / "out")}


def test_a_reader_that_leaves_early_changes_nothing(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = f"{sys.executable} -m coterie run tiny.yaml --output out | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 runs, into out")
    assert_same_run(whole, tmp_path / "out")


def test_a_wrong_model_is_found_before_a_directory_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shapes.py").write_text(
        "from torch import nn\n"
        "def five(feature_shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))\n"
        "def wide(feature_shape, classes): return nn.Linear(100, classes)\n"
        "def leaver(feature_shape, classes): raise SystemExit\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    for name, said in (
        ("five", "gives (2, 5) for a batch of 2 examples, but one output for each class is expected: (2, 10)"),
        ("wide", "does not take inputs of shape (1, 8, 8)"),
        ("leaver", "it called sys.exit"),
        ("number", "is a int, not a factory that can be called"),
    ):
        model = f"model={{name: 'shapes:{name}'}}"
        assert said in error_of(coterie("run", path, "--output", tmp_path / "out", "-s", model))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [":x", ".x:y", "no_such_module:F", "json:F"])
def test_a_method_that_cannot_be_imported_is_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    message = error_of(coterie("run", path, "--output", tmp_path / "out", "-s", f"algorithms=['{name}']"))
    assert f"algorithm '{name}' cannot be imported" in message


def test_the_recipe_is_all_that_results_depend_on(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    from coterie.config import load_config

    recipe = Experiment(load_config(path)).recipe()
    for override in ("processes=2", "checkpoint_every=3", "save_models=false", "seeds=[4]", "algorithms=[local]"):
        assert Experiment(load_config(path, [override])).recipe() == recipe
    for override in (
        "training.lr=0.3",
        "rounds=5",
        "dtype=float64",
        "buffers=local",
        "participation=0.5",
        "report=last",
    ):
        assert Experiment(load_config(path, [override])).recipe() != recipe


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.lr=1e300", "training.lr must be at most 1e+30"),
        ("seeds=[9223372036854775808]", "seeds[0] must be less than"),
        ("threads=100000", "threads must be at most 1024"),
        ("absent={9: [client-00]}", "absent names round 9, but there are only 4 rounds."),
        ("absent={[1]: 2}", "a key must be a name"),
        ("name=" + "[" * 3000, "not valid YAML"),
        ("model.hidden=[0]", "a hidden layer has at least one unit, not 0"),
    ],
)
def test_values_out_of_bounds_are_one_sentence(override: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    assert said in error_of(coterie("run", path, "--output", tmp_path / "out", "-s", override))


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    with pytest.raises(CoterieError, match="Cannot write the run directory"):
        run(path, output="a\0b")
