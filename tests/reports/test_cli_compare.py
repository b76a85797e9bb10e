"""`coterie compare` as people and programs use it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import Result
from hand_made import made
from typer.testing import CliRunner

from coterie.cli import app

LOCAL = {0: [0.5, 0.6, 0.7, 0.8], 1: [0.55, 0.6, 0.65, 0.7]}
FEDAVG = {0: [0.6, 0.5, 0.7, 0.6], 1: [0.5, 0.7, 0.6, 0.5]}
FEDORA = {0: [0.7, 0.8, 0.75, 0.9], 1: [0.75, 0.7, 0.65, 0.8]}


def compare(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def text(*words: str | Path) -> str:
    done = compare(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    results = {"local": LOCAL, "fedavg": FEDAVG, "fedora:released": FEDORA}
    return made(folder / "all", results, seeds=[0, 1], labels={"fedavg": "Fed_Avg & co"})


def test_the_terminal(run: Path) -> None:
    lines = text(run, "--pairs").splitlines()
    first, second = (line for line in lines if line.startswith("local"))
    assert first.split()[:2] == ["local", "0.637±0.018"]
    # Seven of eight pairs lost, one tied: ranks 2 to 8 of 36 lost, and 2 of 2^7 assignments as uneven.
    assert second.split() == ["local", "8", "0", "1", "7", "-0.119", "-0.97", "0.016", "0.031", "2.25"]
    assert any("Average ranks over 8 blocks" in line for line in lines)
    assert "Against fedora (released), by accuracy" in "\n".join(lines)
    assert [line.split() for line in lines[-3:]] == [
        ["1", "local", "5/1/2", "0/1/7"],
        ["2", "Fed_Avg", "&", "co", "2/1/5", "0/1/7"],
        ["3", "fedora", "(released)", "7/1/0", "7/1/0"],
    ]
    assert "Better/equal" not in text(run)


def test_json(run: Path) -> None:
    content = json.loads(text(run, "--json", "--pairs"))
    assert content == json.loads(text(run, "--format", "json", "--pairs"))
    assert [row["label"] for row in content["rows"]] == ["local", "Fed_Avg & co", "fedora (released)"]
    assert content["reference"] == "fedora (released)"
    first = content["tests"][0]
    assert (first["system"], first["pairs"], first["wins"], first["ties"], first["losses"]) == ("local", 8, 0, 1, 7)
    assert first["p"] == 2 / 2**7
    assert first["effect"] == pytest.approx(-35 / 36)
    assert content["ranks"]["critical_difference"] == pytest.approx(2.343 / 2, abs=0.001)
    assert content["pairs"][1] == {"system": "local", "against": "fedora (released)", "wins": 0, "ties": 1, "losses": 7}
    assert "pairs" not in json.loads(text(run, "--json"))


def test_csv_has_every_digit(run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(text(run, "--format", "csv"))))
    assert [row["system"] for row in rows] == ["local", "Fed_Avg & co", "fedora (released)"]
    content = json.loads(text(run, "--json"))
    for row, full in zip(rows, content["rows"], strict=True):
        assert float(row["accuracy_mean"]) == full["accuracy_mean"]
        assert float(row["gain_std"]) == full["gain_std"]
    assert float(rows[0]["p_holm"]) == content["tests"][0]["p_holm"]
    assert rows[2]["p_holm"] == ""
    assert float(rows[2]["average_rank"]) == content["ranks"]["average"]["fedora (released)"]


def test_markdown_and_latex(run: Path) -> None:
    page = text(run, "--format", "markdown").splitlines()
    assert page[0].startswith("| System | Accuracy | R-Acc |")
    assert any(line.startswith(r"| Fed\_Avg & co | 0.587±0.018 |") for line in page)
    assert any(line.startswith("| fedora (released) | **0.756±0.044** |") for line in page)
    table = text(run, "--format", "latex")
    assert r"Fed\_Avg \& co & 0.587$\pm$0.018 &" in table
    assert r"local & \underline{0.637$\pm$0.018} &" in table
    assert r"fedora (released) & \textbf{0.756$\pm$0.044} &" in table
    assert table.count(r"\begin{tabular}") == table.count(r"\end{tabular}") == 2


@pytest.mark.parametrize(
    ("name", "begins"),
    [("t.md", "| System"), ("t.tex", "%"), ("t.txt", " ")],
)
def test_files(run: Path, tmp_path: Path, name: str, begins: str) -> None:
    assert f"The comparison is in {tmp_path / name}" in text(run, "--output", tmp_path / name)
    content = (tmp_path / name).read_text()
    assert content.startswith(begins)
    assert "fedora (released)" in content
    assert "\x1b" not in content


def test_a_format_can_be_stated(run: Path, tmp_path: Path) -> None:
    for name in ("x.data", "x.txt"):
        text(run, "--format", "csv", "-o", tmp_path / name)
        assert (tmp_path / name).read_text().startswith("system,")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--metric", "f1"], "--metric f1: these runs are compared by accuracy"),
        (["--reference", "nobody"], "--reference nobody is none of the systems"),
        (["--by", "training.lrr"], "did you mean training.lr?"),
        (["--json", "--format", "csv"], "--json and --format csv contradict each other"),
        (["--json", "--output", "x.csv"], "--json and --output x.csv contradict each other: give one of them."),
        (["--format", "latex", "--output", "x.md"], "--format latex and --output x.md contradict each other"),
        (["--pairs", "--format", "csv"], "--pairs is a second table, and a CSV holds one: leave it out"),
        (["--pairs", "--output", "x.csv"], "--pairs is a second table, and a CSV holds one: leave it out"),
        (["--output", "x.doc"], "its suffix names no format"),
        (["--output", "absent/x.csv"], "--output absent/x.csv: there is no folder absent."),
        (["nowhere"], "There is no run directory nowhere"),
    ],
)
def test_mistakes_get_one_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = compare(run, *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_results_of_a_run_are_not_written_over(run: Path, tmp_path: Path) -> None:
    file = run / "history.csv"
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    done = compare(run, "-o", file)
    assert done.exit_code == 2
    assert done.stderr.strip().endswith(f"{file} belongs to the results in {run}; choose another --output.")
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    for _ in range(2):
        assert text(run, "-o", tmp_path / "all.csv")
