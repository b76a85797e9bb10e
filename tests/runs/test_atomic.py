"""Files are the old one or the new one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.errors import CoterieError
from coterie.runs.atomic import atomic_path, write_json, write_text


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    write_json(file, {"a": 1})
    write_json(file, {"a": "é"})
    assert file.read_text(encoding="utf-8") == '{\n  "a": "é"\n}\n'
    assert os.listdir(tmp_path) == ["summary.json"]


def test_an_error_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    write_text(file, "old")

    def fail() -> None:
        with atomic_path(file) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["history.csv"]


def test_nan_never_reaches_a_json_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": None})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert "null" in (tmp_path / "a.json").read_text()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"Cannot write .*nowhere.*--output"):
        write_text(tmp_path / "nowhere" / "a.txt", "a")


def test_a_full_disk_is_reported_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CoterieError, match="No space left on device"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_kill_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    script = (
        "import os, signal, sys; from pathlib import Path; from coterie.runs.atomic import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as t:\n"
        "    t.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert file.read_text() == "old"
    write_text(file, "new")  # what the killed process left is no obstacle
    assert os.listdir(tmp_path) == ["a.txt"]
