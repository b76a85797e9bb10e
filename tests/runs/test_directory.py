"""How a run directory is made, refused, opened and cleared."""

import json
import os
from pathlib import Path

import pytest

from coterie.errors import CoterieError
from coterie.runs import RunDirectory, system_folder


def test_the_default_is_the_next_free_number(tmp_path: Path) -> None:
    first = RunDirectory.create(None, "quickstart", root=tmp_path / "runs")
    assert first.path == tmp_path / "runs" / "quickstart-1"
    (tmp_path / "runs" / "quickstart-9").mkdir()
    (tmp_path / "runs" / "quickstart-x").mkdir()
    (tmp_path / "runs" / "quickstart-2-30").mkdir()
    assert RunDirectory.create(None, "quickstart", root=tmp_path / "runs").path.name == "quickstart-10"


def test_the_default_root_is_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunDirectory.create(None, "a").path == Path("runs/a-1")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("fedora/rotated-mnist", "fedora-rotated-mnist-1"),
        ("../..", "run-1"),
        ("a b\tc", "a-b-c-1"),
        ("", "run-1"),
    ],
)
def test_a_name_becomes_one_folder(tmp_path: Path, name: str, folder: str) -> None:
    run = RunDirectory.create(None, name, root=tmp_path)
    assert run.path == tmp_path / folder


def test_a_number_taken_by_another_process_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def raced(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.name == "a-1" and not self.exists():
            real(self)  # somebody else is faster
        real(self, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", raced)
    assert RunDirectory.create(None, "a", root=tmp_path).path.name == "a-2"


def test_files_lie_where_the_contract_says(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a" / "b", "x")
    assert run.path == tmp_path / "a" / "b"
    names = [
        run.config.name,
        run.environment.name,
        run.history.name,
        run.history_csv.name,
        run.clients.name,
        run.timings.name,
        run.failures.name,
        run.summary.name,
        run.report.name,
    ]
    assert names == [
        "config.yaml",
        "environment.json",
        "history.parquet",
        "history.csv",
        "clients.parquet",
        "timings.parquet",
        "failures.csv",
        "summary.json",
        "report.html",
    ]
    assert run.checkpoint("fedora", "paper", 2) == run.path / "checkpoints" / "fedora-paper" / "seed2.pt"
    assert run.checkpoint("fedora", "paper", 2).parent.is_dir()
    assert run.checkpoint("local", None, 0).parent.name == "local"
    assert "coterie" in json.loads(run.environment.read_text())


def test_system_folder() -> None:
    assert system_folder("fedora", "released") == "fedora-released"
    assert system_folder("local", None) == system_folder("local", "") == "local"
    assert system_folder("ditto", "lam=0.1") == "ditto-lam=0.1"
    assert system_folder("ditto", "../x") == "ditto-..-x"


def test_an_existing_directory_is_refused_and_untouched(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "x")
    run.write_config("name: first\n")
    with pytest.raises(CoterieError, match=r"exists already.*coterie resume.*--overwrite"):
        RunDirectory.create(tmp_path / "a", "x")
    assert run.config.read_text() == "name: first\n"


def test_overwrite_clears_what_a_run_writes_and_nothing_else(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "x")
    run.write_config("name: first\n")
    run.write_summary([])
    run.checkpoint("local", None, 0).write_bytes(b"state")
    run.models.mkdir()
    (run.path / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep").write_text("keep")
    (run.models / "linked").symlink_to(elsewhere)
    again = RunDirectory.create(tmp_path / "a", "x", overwrite=True)
    assert sorted(os.listdir(again.path)) == ["checkpoints", "environment.json", "notes.txt"]
    assert os.listdir(again.checkpoints) == []
    assert (elsewhere / "keep").exists()


def test_overwrite_does_not_follow_a_linked_folder(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "x")
    store = tmp_path / "store"
    store.mkdir()
    (store / "keep").write_text("keep")
    run.models.symlink_to(store)
    RunDirectory.create(tmp_path / "a", "x", overwrite=True)
    assert (store / "keep").exists()
    assert not run.models.exists()


@pytest.mark.parametrize("content", [None, "[]", "{", '{"python": "3"}'])
def test_overwrite_touches_only_a_run_directory(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "models").mkdir()
    if content is not None:
        (folder / "environment.json").write_text(content)
    with pytest.raises(CoterieError, match="is not a run directory, so --overwrite does not touch it"):
        RunDirectory.create(folder, "x", overwrite=True)
    assert (folder / "models").exists()


def test_overwrite_takes_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert RunDirectory.create(tmp_path / "empty", "x", overwrite=True).environment.exists()
    assert RunDirectory.create(tmp_path / "new", "x", overwrite=True).environment.exists()


def test_a_file_or_a_dead_link_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for overwrite in (False, True):
        with pytest.raises(CoterieError, match="is a file, not a directory"):
            RunDirectory.create(tmp_path / "file", "x", overwrite=overwrite)
        with pytest.raises(CoterieError, match="is a link that leads nowhere"):
            RunDirectory.create(tmp_path / "link", "x", overwrite=overwrite)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for path, root in ((tmp_path / "file" / "run", "runs"), (None, tmp_path / "file" / "runs")):
        with pytest.raises(CoterieError, match=r"Cannot write the run directory .*file.*--output"):
            RunDirectory.create(path, "x", root=root)

    def denied(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(CoterieError, match=r"Cannot write the run directory .*Permission denied"):
        RunDirectory.create(tmp_path / "new", "x")


def test_open(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "a", "x")
    assert RunDirectory.open(str(tmp_path / "a")) == made
    with pytest.raises(CoterieError, match="There is no run directory"):
        RunDirectory.open(tmp_path / "b")
    with pytest.raises(CoterieError, match="is not a run directory"):
        RunDirectory.open(tmp_path)


def test_the_summary_comes_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", "x")
    with pytest.raises(CoterieError, match="has not finished"):
        run.read_summary()
    rows = [{"algorithm": "local", "r_acc": 0.0, "mae": None}]
    run.write_summary(rows)
    assert json.loads(run.summary.read_text()) == {"rows": rows}
    assert run.read_summary() == rows
    for damaged in ('{"rows": [', "{}", "[]"):
        run.summary.write_text(damaged)
        with pytest.raises(CoterieError, match="is damaged"):
            run.read_summary()
