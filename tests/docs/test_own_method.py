"""The tutorial on a method of one's own, followed to the letter: written, checked, broken, compared, tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import ROOT, blocks_of
from .test_blocks import save_files

PAGE = ROOT / "docs" / "own-method.md"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "coterie", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_files(PAGE, tmp_path)
    return tmp_path


def test_it_has_thirty_lines(folder: Path) -> None:
    text = (folder / "halfway.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 30


def test_it_passes_the_suite(folder: Path) -> None:
    done = run(folder, "check", "halfway:Halfway", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {finding["identity"]: finding["verdict"] for finding in json.loads(done.stdout)}
    assert {name for name, verdict in verdicts.items() if verdict != "holds"} == {"anchored"}
    assert verdicts["anchored"] == "unclaimed"


def test_the_fault_that_the_page_shows_is_caught_in_these_words(folder: Path) -> None:
    text = (folder / "halfway.py").read_text(encoding="utf-8")
    broken = text.replace("site.fit(site.theta * (1 - self.share) + w * self.share)", "site.fit(w)")
    assert broken != text
    (folder / "halfway.py").write_text(broken, encoding="utf-8")
    done = run(folder, "check", "--quiet", "halfway:Halfway")
    assert done.returncode == 1
    (shown,) = (b.text for b in blocks_of(PAGE) if b.language == "text" and b.text.startswith("BROKEN"))
    assert " ".join(done.stdout.split()) == " ".join(shown.split())


def test_it_is_compared_like_any_other(folder: Path) -> None:
    entries = "algorithms=[local, fedavg, 'halfway:Halfway', {name: 'halfway:Halfway', share: 0.1}]"
    done = run(folder, "run", "quickstart", "-s", "rounds=3", "-s", "seeds=[0]", "-s", entries, "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert {"local", "fedavg", "halfway"} <= set(rows)
    assert rows.count("halfway") == 2
    (summary,) = folder.glob("runs/*/summary.json")
    assert "halfway" in summary.read_text(encoding="utf-8")
