"""`coterie watch` as a person uses it, and beside a run that must not notice."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from cli_helpers import assert_same_run, coterie, error_of, tiny

from coterie.errors import CoterieError
from coterie.reports.watching import Snapshot, Watcher


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch")
    result = coterie("run", tiny(folder), "-o", folder / "run", "-s", "rounds=8", "-s", "checkpoint_every=1")
    assert result.exit_code == 0, result.output
    return folder / "run"


def files_of(run: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}


def test_watch_shows_a_finished_run_and_writes_nothing(finished: Path) -> None:
    before = files_of(finished)
    result = coterie("watch", finished, "--once")
    assert result.exit_code == 0, result.output
    assert "2 runs: 2 finished." in result.output
    assert "8/8" in result.output
    assert coterie("watch", finished).exit_code == 0, "standard output is no terminal, so it stops"
    assert files_of(finished) == before


def test_json_has_the_results_of_the_tables(finished: Path) -> None:
    result = coterie("watch", finished, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["condition"] == "finished"
    assert [system["label"] for system in told["systems"]] == ["local", "ditto"]
    rows = Watcher(finished).run.tables.history
    last = rows[(rows["round"] == 8) & (rows["split"] == "test") & (rows["metric"] == "accuracy")]
    assert [system["value"] for system in told["systems"]] == pytest.approx(last["value"].tolist())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("nowhere",),
            "There is no run directory nowhere: give the directory that `coterie run` printed, or add --wait.",
        ),
        ((".",), "is not a run directory"),
        ((".", "--port", "8000"), "--port is the page's: add --web."),
        ((".", "--web", "--json"), "--web goes on until Ctrl-C"),
        ((".", "--keep", "--once"), "--keep goes on: leave it out, or leave out --once and --json."),
        ((".", "--keep", "--json"), "--keep goes on: leave it out, or leave out --once and --json."),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(coterie("watch", *words))


def test_watch_waits_for_a_run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        if not (tmp_path / "run").exists():
            (tmp_path / "run").symlink_to(finished)

    monkeypatch.setattr("coterie.cli.watching.time.sleep", wait)
    result = coterie("watch", tmp_path / "run", "--wait", "--once")
    assert result.exit_code == 0, result.output
    assert "Waiting for a run" in result.output
    assert "2 runs: 2 finished." in result.output


def test_a_watched_run_does_not_notice(finished: Path, tmp_path: Path) -> None:
    seen: list[Snapshot] = []
    errors: list[Exception] = []
    over = threading.Event()

    def watching() -> None:
        watcher = None
        while not over.is_set():
            time.sleep(0.002)
            try:
                watcher = watcher or Watcher(tmp_path / "run")
            except CoterieError:  # not there yet
                continue
            try:
                watcher._rest_until = 0.0
                seen.append(watcher.look())
            except Exception as error:  # told below, not in a thread
                errors.append(error)

    thread = threading.Thread(target=watching)
    thread.start()
    try:
        result = coterie("run", tiny(tmp_path), "-o", tmp_path / "run", "-s", "rounds=8", "-s", "checkpoint_every=1")
        end = time.monotonic() + 60
        while not any(snapshot.condition == "finished" for snapshot in list(seen)) and time.monotonic() < end:
            assert errors == []
            time.sleep(0.01)
    finally:
        over.set()
        thread.join()
    assert result.exit_code == 0, result.output
    assert errors == []
    assert {"running", "finished"} <= {snapshot.condition for snapshot in seen}
    assert not any(note for snapshot in seen for note in snapshot.notes)
    rounds = [sum(line.round for line in snapshot.lines) for snapshot in seen]
    assert rounds == sorted(rounds)
    assert_same_run(tmp_path / "run", finished)
    names = [{str(path.relative_to(run)) for path in run.rglob("*")} for run in (tmp_path / "run", finished)]
    assert names[0] == names[1]
