"""What a run says of the machine it ran on."""

import getpass
import json
import platform
import subprocess
from pathlib import Path

import torch

from coterie.runs import environment
from coterie.runs.environment import _commit


def test_versions_and_machine_are_there() -> None:
    found = environment()
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == torch.__version__
    assert found["coterie"]
    assert found["cpus"] >= 1


def test_it_names_neither_user_nor_host_nor_folder() -> None:
    text = json.dumps(environment())
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert platform.node() not in text or len(platform.node()) < 4
    assert getpass.getuser() not in text


def test_the_commit_is_that_of_the_checkout_that_tracks_the_file(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    package = tmp_path / "src" / "coterie" / "runs"
    package.mkdir(parents=True)
    file = package / "environment.py"
    file.write_text("a = 1\n")
    assert _commit(file) == (None, None)  # no repository
    git("init", "-q")
    (tmp_path / "README").write_text("")
    git("add", "README")
    git("commit", "-qm", "first")
    assert _commit(file) == (None, None)  # somebody else's repository
    git("add", ".")
    git("commit", "-qm", "second")
    assert _commit(file) == (git("rev-parse", "HEAD"), False)
    file.write_text("a = 2\n")
    assert _commit(file) == (git("rev-parse", "HEAD"), True)
