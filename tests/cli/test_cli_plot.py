"""`coterie plot`: files that are what they say, and nothing else overwritten."""

from __future__ import annotations

import builtins
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_helpers import coterie, error_of
from matplotlib.figure import Figure

from written_runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plot") / "run"
    write_run(folder)
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are empty, which is quick."""
    monkeypatch.setattr("coterie.reports.figures.kinds.draw", lambda *_: Figure())


def test_all_kinds_go_into_the_run_directory(run: Path) -> None:
    result = coterie("plot", run, "--format", "png")
    assert result.exit_code == 0, result.output
    kinds = ("curves", "gain", "accuracy", "scatter", "relations", "data", "ranks")
    assert {path.name for path in (run / "figures").iterdir()} == {f"{kind}.png" for kind in kinds}
    content = (run / "figures/curves.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    width, _ = struct.unpack(">II", content[16:24])
    assert width == 990  # 3.3 inches of 300 points


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--kind", "gain"], True), (["--kind", "gain", "--seed", "1"], False), (["-k", "curves"], False)],
)
def test_bars_over_several_divisions_of_the_data_are_named_so(
    tmp_path: Path, undrawn: None, options: list[str], said: bool
) -> None:
    write_run(tmp_path / "run")
    result = coterie("plot", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    assert ("means over 2 divisions of the data" in result.output.replace("\n", " ")) is said


def test_a_pdf_embeds_its_fonts_as_truetype_and_is_the_same_again(run: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.pdf", tmp_path / "b.pdf"
    for path in (first, second):
        assert coterie("plot", run, "--kind", "gain", "--output", path).exit_code == 0
    content = first.read_bytes()
    assert content.startswith(b"%PDF-")
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert content == second.read_bytes()


def test_an_svg_holds_its_labels_as_text(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep/in/curves.svg"
    result = coterie("plot", run, "-k", "curves", "-o", path, "--title", "Rotated digits", "--width", "double")
    assert result.stdout.splitlines()[0] == str(path)
    tree = ElementTree.parse(path).getroot()
    words = {"".join(element.itertext()).strip() for element in tree.iter() if element.tag.endswith("}text")}
    assert {"LOCAL", "FedAvg", "FEDORA", "round", "test accuracy", "Rotated digits"} <= words
    assert float(re.sub("pt", "", tree.attrib["width"])) == pytest.approx(6.9 * 72)


def test_a_run_that_is_given_twice_is_said_once(run: Path, tmp_path: Path) -> None:
    assert error_of(coterie("plot", run, run, "-o", tmp_path / "figures")).count("given twice") == 1


@pytest.mark.parametrize("words", [("--system", "FEDRA"), ("--seed", "7")])
def test_a_system_or_seed_that_no_run_has_is_said_once(run: Path, words: tuple[str, str]) -> None:
    said = error_of(coterie("plot", run, *words))
    assert said.startswith(f"{' '.join(words)}: there are ")
    assert said.count(words[0]) == 1


def test_a_figure_is_drawn_again_but_nothing_else_is_replaced(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.pdf"
    path.write_bytes(b"%PDF-1.4 my thesis")
    assert "no figure of Coterie's" in error_of(coterie("plot", run, "-k", "curves", "-o", path))
    assert path.read_bytes() == b"%PDF-1.4 my thesis"
    path.unlink()
    for system in ("FedAvg", "FEDORA"):
        assert coterie("plot", run, "-k", "curves", "-o", path, "--system", system).exit_code == 0


def test_an_unfinished_run_is_drawn_and_says_what_is_missing(tmp_path: Path) -> None:
    write_run(tmp_path / "run", planned=10, portrait=False)
    result = coterie("plot", tmp_path / "run", "--output", tmp_path / "out")
    assert result.exit_code == 0
    assert "FEDORA, seed 1: 6 of 10 rounds." in result.stdout
    assert "left out data:" in result.stdout
    assert "federation.json" in result.stdout
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"curves", "gain", "accuracy", "relations", "ranks"}
    assert coterie("plot", tmp_path / "run", "-q").stdout == ""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("relations --order angle", "relations"),
        ("relations --matrix similarity", "relations-similarity"),
        ("relations --matrix propagation --seed 0", "relations-propagation-seed0"),
        ("relations --round 2,4 --as graph", "relations-graph-round2-4"),
        ("relations --as weights --client client-01 --client client-03", "relations-weights-client-01-client-03"),
        ("gain --system FedAvg --system a/b", "gain-FedAvg-a-b"),
        ("curves --over bytes --split validation", "curves-validation-bytes"),
    ],
)
def test_figures_that_show_something_else_have_names_of_their_own(
    words: str, name: str, tmp_path: Path, undrawn: None
) -> None:
    systems = {("local", ""): "LOCAL", ("fedavg", ""): "FedAvg", ("fedora", "released"): "a/b"}
    write_run(tmp_path / "run", systems=systems)
    result = coterie("plot", tmp_path / "run", "--kind", *words.split())
    assert result.stdout.splitlines()[0] == str(tmp_path / "run" / "figures" / f"{name}.pdf"), result.output


def test_names_of_figures_are_short_enough_for_a_file_system(tmp_path: Path, undrawn: None) -> None:
    labels = [f"FedAvg {'very ' * 60}{end}" for end in ("old", "new")]
    write_run(
        tmp_path / "run", systems={("local", ""): "LOCAL", ("fedavg", "a"): labels[0], ("fedavg", "b"): labels[1]}
    )
    names = set()
    for label in labels:
        result = coterie("plot", tmp_path / "run", "-k", "curves", "--system", label)
        names.add(Path(result.stdout.splitlines()[0]).name)
    assert len(names) == 2
    assert max(map(len, names)) < 100


def test_overwrite_clears_figures(run: Path, tmp_path: Path) -> None:
    from coterie.runs import RunDirectory

    write_run(tmp_path / "run")
    assert coterie("plot", tmp_path / "run", "-k", "curves").exit_code == 0
    RunDirectory.create(tmp_path / "run", "x", overwrite=True)
    assert not (tmp_path / "run/figures").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--kind", "pie"], "--kind pie: choose one of curves, gain"),
        (["--kind", "gain", "--format", "gif"], "--format gif: choose one of pdf, svg, png"),
        (["--kind", "gain", "--output", "a.gif"], "its ending gif: choose one of pdf, svg, png"),
        (["--width", "narrow"], "--width narrow: give single, double, or inches"),
        (["--kind", "relations", "--round", "1-5"], "--round 1-5: give numbers with commas"),
        (["-k", "gain", "--client", "client-00"], "--client is of relations, not of --kind gain: leave it out."),
        (["-k", "curves", "--matrix", "similarity"], "--matrix is of relations, not of --kind curves: leave it out."),
        (["-k", "curves", "--against", "angle"], "--against is of scatter, not of --kind curves: leave it out."),
        (["-k", "scatter", "--order", "angle"], "--order is of gain, accuracy, relations, data, not of --kind scatter"),
        (["-k", "ranks", "--system", "FEDORA"], "relations, not of --kind ranks: leave it out."),
        (["--client", "client-00"], "--client is of --as weights: add it, or leave --client out."),
        (["-k", "relations", "--as", "weights", "--order", "angle"], "--order is not of --as weights"),
        (["--over", "time"], "--over time: choose one of round, bytes"),
        (["-o", "fig.pdf"], "--output fig.pdf is one file, but --kind all draws several: add --kind."),
        (["-k", "gain", "--format", "pdf", "-o", "c.png"], "--format pdf and --output c.png contradict each other"),
    ],
)
def test_a_wrong_word_is_an_error_of_one_sentence(
    run: Path, words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in error_of(coterie("plot", run, *words))
    assert not list(tmp_path.iterdir())


def test_no_run_directory_and_several_without_a_place(run: Path, tmp_path: Path) -> None:
    assert "no run directory" in error_of(coterie("plot", tmp_path / "nothing"))
    assert "say where by --output" in error_of(coterie("plot", run, run))


def test_without_matplotlib_it_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert error_of(coterie("plot", run)) == "coterie plot needs matplotlib: pip install 'coterie[plot]'."
