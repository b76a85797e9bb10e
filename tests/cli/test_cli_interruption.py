"""Killed, interrupted, terminated: a resumed run is the run that nothing had happened to."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import TINY, assert_same_run, coterie, error_of, rows_of

from coterie.engines import RoundReport, Simulation
from coterie.experiment import resume_command

LONGER = (
    TINY.replace("rounds: 4", "rounds: 24")
    .replace("[local,", "[local, fedora,")
    .replace("threads: 1", "threads: 1\nparticipation: 0.5\ncheckpoint_every: 4\nshare: 1\nseeds: [0, 1]")
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the experiment that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(LONGER)
    assert coterie("run", folder / "tiny.yaml", "--output", folder / "out").exit_code == 0
    return folder / "out"


def start(folder: Path) -> subprocess.Popen[str]:
    """The experiment in a process of its own, its run directory ``folder/out``."""
    (folder / "tiny.yaml").write_text(LONGER)
    words = [sys.executable, "-m", "coterie", "run", "tiny.yaml", "--output", "out"]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupt(folder: Path, system: str, number: int) -> tuple[int, str]:
    """Send a signal once the first checkpoint of ``system`` is there; exit code and stderr."""
    with start(folder) as process:
        deadline = time.monotonic() + 120
        while not list(folder.glob(f"out/checkpoints/{system}/*.pt")):
            assert process.poll() is None, "the run was over before its first checkpoint was seen"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory that stops at a checkpoint of FEDORA."""
    folder = tmp_path_factory.mktemp("killed")
    code, _ = interrupt(folder, "fedora-released", signal.SIGKILL)
    assert code == -signal.SIGKILL
    return folder / "out"


@pytest.fixture
def stopped(killed: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(killed, tmp_path / "out"))


def test_killed_and_resumed_is_as_if_never_killed(stopped: Path, uninterrupted: Path) -> None:
    assert not (stopped / "summary.json").exists()
    assert coterie("resume", stopped).exit_code == 0
    assert_same_run(uninterrupted, stopped)
    assert not list(stopped.glob("checkpoints/**/*.pt"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(number: int, code: int, tmp_path: Path, uninterrupted: Path) -> None:
    exit_code, errors = interrupt(tmp_path, "local", number)
    assert exit_code == code
    assert errors.strip() == "Stopped after saving; continue with: coterie resume out"
    assert coterie("resume", tmp_path / "out").exit_code == 0
    assert_same_run(uninterrupted, tmp_path / "out")


def test_the_way_on_names_a_data_folder_unless_the_environment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert resume_command(Path("out")) == "coterie resume out"
    assert resume_command(Path("my out"), Path("data")) == "coterie resume 'my out' --data-dir data"
    monkeypatch.setenv("COTERIE_DATA", "data/")
    assert resume_command(Path("out"), Path("data")) == "coterie resume out"
    assert resume_command(Path("out"), Path("other")) == "coterie resume out --data-dir other"


def test_history_written_after_the_checkpoint_is_cut(stopped: Path, uninterrupted: Path) -> None:
    # A kill between history and checkpoint leaves a history that is longer than the checkpoint.
    for name in ("history.parquet", "clients.parquet", "timings.parquet"):
        (stopped / name).write_bytes((uninterrupted / name).read_bytes())
    assert coterie("resume", stopped).exit_code == 0
    for row, expected in zip(rows_of(stopped), rows_of(uninterrupted), strict=True):
        assert row["accuracy_mean"] == expected["accuracy_mean"]
        assert row["bytes_up"] == expected["bytes_up"]


def test_a_truncated_checkpoint_is_named(stopped: Path) -> None:
    (path,) = stopped.glob("checkpoints/fedora-released/*.pt")
    path.write_bytes(path.read_bytes()[:1000])
    message = error_of(coterie("resume", stopped))
    assert str(path) in message
    assert "delete it" in message


def test_other_data_are_not_mixed_in(stopped: Path) -> None:
    path = stopped / "checkpoints" / "progress.json"
    content = json.loads(path.read_text())
    content["sources"]["0"]["sha256"] = "of other files"
    path.write_text(json.dumps(content))
    message = error_of(coterie("resume", stopped))
    assert "not those this run began with (sha256" in message


def test_a_damaged_record_or_configuration_is_named(stopped: Path) -> None:
    record = stopped / "checkpoints" / "progress.json"
    whole = record.read_text()
    record.write_text(whole[:20])
    assert "progress.json is damaged" in error_of(coterie("resume", stopped))
    record.write_text(whole)
    (stopped / "config.yaml").write_text("rouds: 3\n")
    assert "config.yaml: unknown key rouds" in error_of(coterie("resume", stopped))
    (stopped / "config.yaml").unlink()
    assert "config.yaml cannot be read" in error_of(coterie("resume", stopped))


def test_resuming_a_finished_run_prints_its_table_again(uninterrupted: Path) -> None:
    before = {path: path.read_bytes() for path in uninterrupted.glob("*.parquet")}
    result = coterie("resume", uninterrupted)
    assert result.exit_code == 0
    assert "Accuracy" in result.stdout
    assert before == {path: path.read_bytes() for path in uninterrupted.glob("*.parquet")}


def test_stopped_right_after_the_initial_evaluation(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(LONGER)
    first = Simulation.initial_report

    def interrupted(simulation: Simulation) -> RoundReport:
        signal.raise_signal(signal.SIGINT)
        return first(simulation)

    monkeypatch.setattr(Simulation, "initial_report", interrupted)
    stopped = coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "out")
    monkeypatch.undo()
    assert stopped.exit_code == 130
    assert len(list(tmp_path.glob("out/checkpoints/*/*.pt"))) == 1
    assert coterie("resume", tmp_path / "out").exit_code == 0
    assert_same_run(tmp_path / "out", uninterrupted)
