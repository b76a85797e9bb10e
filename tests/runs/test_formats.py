"""Sheets as Markdown and LaTeX: what is bold, what is underlined, and names that would be commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.runs.columns import Column, Mark, columns
from coterie.runs.formats import escape_latex, latex, markdown
from coterie.runs.sheet import Cell, Sheet, result_sheet

SHEET = Sheet(
    ("System", "Accuracy", "Gain\n(points)"),
    (
        (Cell("ours_50% & {more}"), Cell("0.825±0.003", "best"), Cell("-6.1±2.9", "second")),
        (Cell("[base] *a|b*"), Cell("0.700", "second"), Cell("–")),
    ),
    "A_1",
    ("One note: 10 % of 5 $.",),
)


def marks(values: list[float | None], better: int = 1) -> list[Mark]:
    column = Column("x", "X", ("x",), lambda row: "–" if row["x"] is None else f"{row['x']:.2f}±0.1", better)
    return column.marks([{"x": value} for value in values])


def test_the_best_and_the_second_best() -> None:
    assert marks([0.5, 0.9, 0.7]) == ["", "best", "second"]
    assert marks([0.5, 0.9, 0.7], better=-1) == ["best", "", "second"]
    assert marks([0.5, 0.9], better=0) == ["", ""]


def test_those_that_print_alike_are_marked_alike() -> None:
    assert marks([0.901, 0.899, 0.5, 0.501, 0.3]) == ["best", "best", "second", "second", ""]
    assert marks([0.9, 0.9]) == ["best", "best"]


def test_what_is_undefined_does_not_compete_and_nobody_beats_himself() -> None:
    assert marks([None, 0.9, 0.7]) == ["", "best", "second"]
    assert marks([None, 0.9]) == ["", ""]


def test_local_wins_nothing_where_it_is_the_yardstick() -> None:
    ptr = next(column for column in columns("accuracy") if column.name == "ptr")
    rows = [{"label": "local", "reference": True, "ptr": 1.0}, {"ptr": 0.5}, {"ptr": 0.25}]
    assert ptr.marks(rows) == ["", "best", "second"]
    assert result_sheet([row | {"label": "x"} for row in rows], [ptr]).rows[1][1] == Cell("0.50", "best")


def test_markdown() -> None:
    assert markdown(SHEET).splitlines() == [
        r"**A\_1**",
        "",
        "| System | Accuracy | Gain (points) |",
        "| --- | ---: | ---: |",
        r"| ours\_50% & {more} | **0.825±0.003** | <ins>-6.1±2.9</ins> |",
        r"| \[base\] \*a\|b\* | <ins>0.700</ins> | – |",
        "",
        "One note: 10 % of 5 $.",
    ]


def test_latex() -> None:
    assert latex(SHEET).splitlines() == [
        "% A_1",
        "% One note: 10 % of 5 $.",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"System & Accuracy & Gain (points) \\",
        r"\midrule",
        r"ours\_50\% \& \{more\} & \textbf{0.825$\pm$0.003} & \underline{$-$6.1$\pm$2.9} \\",
        r"{}[base] *a|b* & \underline{0.700} & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_every_character_that_is_a_command_is_escaped() -> None:
    text = escape_latex("\\{}~^&%$#_<>")
    assert text == r"\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}\&\%\$\#\_$<$$>$"


def test_the_latex_is_a_whole_table(tmp_path: Path) -> None:
    """Compiled where there is a LaTeX; brackets, braces and columns are counted anyhow."""
    text = latex(SHEET)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {2}
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    if program := shutil.which("pdflatex") or shutil.which("tectonic"):
        page = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + text + "\\end{document}\n"
        (tmp_path / "page.tex").write_text(page)
        words = [program, "page.tex"] if "tectonic" in program else [program, "-halt-on-error", "page.tex"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("metric", "names"),
    [
        ("accuracy", ["accuracy", "r_acc", "ptr", "gain", "worst", "worst_decile"]),
        ("mae", ["mae", "r_mae", "ptr", "worst", "worst_decile"]),
        ("auroc", ["auroc", "r_acc", "ptr", "gain", "worst", "worst_decile"]),
        ("rmse", ["rmse", "r_rmse", "ptr", "worst", "worst_decile"]),
        ("r2", ["r2", "ptr", "worst", "worst_decile"]),
    ],
)
def test_the_columns_of_each_metric(metric: str, names: list[str]) -> None:
    found = columns(metric)
    assert [column.name for column in found] == [*names, "bytes", "seconds"]
    assert found[0].keys == (f"{metric}_mean", f"{metric}_std")
    assert found[0].better == (-1 if metric in ("mae", "rmse") else 1)
