"""The set-up script: what it refuses, in which words, and when it installs again."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .blocks import ROOT


@pytest.fixture
def bootstrap(tmp_path: Path) -> ModuleType:
    """Return the script as a module, in a folder of its own."""
    for name in ("bootstrap.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", tmp_path / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def calls(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace every program that the script would start by a success that is noted down."""
    noted: list[list[str]] = []

    def call(command: list[str], **_: object) -> int:
        noted.append(command)
        return 0

    monkeypatch.setattr(bootstrap.subprocess, "call", call)
    bootstrap.PYTHON.parent.mkdir(parents=True)
    bootstrap.PYTHON.touch()
    return noted


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.startswith("bootstrap: ")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize("version", [(3, 9, 18), (3, 10, 0), (3, 14, 1)])
def test_an_unsupported_python_is_refused(
    version: tuple[int, int, int],
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", version)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: name == "python3.12")
    with pytest.raises(SystemExit) as stop:
        bootstrap.main(["run"])
    assert stop.value.code == 2
    text = refusal(capsys)
    assert "3.11, 3.12 or 3.13" in text
    assert ".".join(map(str, version)) in text
    assert "with python3.12" in text


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_virtual_environments_is_refused(
    module: str, bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None if name == module else there(name))
    with pytest.raises(SystemExit) as stop:
        bootstrap.main(["test"])
    assert stop.value.code == 2
    text = refusal(capsys)
    assert f"`{module}`" in text
    assert "python3-venv" in text


def test_a_folder_that_is_no_environment_is_left_alone(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap.VENV.mkdir()
    (bootstrap.VENV / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(SystemExit):
        bootstrap.main(["run"])
    assert "move it away" in refusal(capsys)
    assert (bootstrap.VENV / "mine.txt").exists()


def test_a_failing_pip_is_explained_and_tried_again(
    bootstrap: ModuleType,
    calls: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bootstrap.subprocess, "call", lambda command, **_: int("pip" in command))
    with pytest.raises(SystemExit) as stop:
        bootstrap.install(".")
    assert stop.value.code == 2
    assert "mirror" in refusal(capsys)
    assert not bootstrap.STAMP.exists()


def test_installing_is_pinned_and_happens_once(bootstrap: ModuleType, calls: list[list[str]]) -> None:
    def installs() -> list[list[str]]:
        return [command for command in calls if "install" in command]

    bootstrap.install(".[dev]")
    assert len(installs()) == 1
    command = installs()[0]
    assert command[command.index("-c") + 1] == "constraints.txt"
    assert command[-1] == ".[dev]"
    assert not any("://" in word or "index" in word for word in command)
    bootstrap.install(".[dev]")
    bootstrap.install(".")  # part of the above
    assert len(installs()) == 1
    with (bootstrap.ROOT / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    bootstrap.install(".")
    assert len(installs()) == 2
    bootstrap.install(".[dev]")  # the plain installation does not contain it
    assert len(installs()) == 3


def test_help_and_unknown_commands() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "bootstrap.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("--help").returncode == 0
    unknown = run("rum")
    assert unknown.returncode == 2
    for name in ("run", "test", "test-full", "install"):
        assert f"bootstrap.py {name}" in unknown.stdout
