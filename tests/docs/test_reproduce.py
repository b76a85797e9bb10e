"""The published tables: cells are run once, known by their settings, and told as they are."""

import json
import signal
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from coterie.config import load_config
from coterie.reports import compare, open_run

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "name": "small",
    "federation": {
        "source": "digits",
        "partition": {"rule": "rotation", "clients": 3},
        "train": 20,
        "validation": 10,
        "test": 20,
    },
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 1, "batch_size": 10, "lr": 0.1},
    "algorithms": ["fedavg", {"name": "ditto", "lambda": 0.1}, {"name": "ditto", "lambda": 1.0}],
    "rounds": 2,
    "seeds": [0, 1],
}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small table, in place of the published ones."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.reproduce import cells, rows

    monkeypatch.setattr(cells, "HERE", tmp_path)
    monkeypatch.setattr(cells, "TABLES", tmp_path / "tables.yaml")
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    published = {"local": 0.5, "fedavg": [0.4, -0.2, 0.0]}
    table = {"title": "A small table", "experiment": "small.yaml", "columns": ["accuracy", "r_acc", "ptr"]}
    (tmp_path / "tables.yaml").write_text(yaml.safe_dump({"small": {**table, "published": published}}))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


def _run(folder: Path, seeds: list[int] | None = None, labels: list[str] | None = None) -> None:
    from benchmarks.reproduce.cells import table_named
    from benchmarks.reproduce.running import reproduce

    reproduce(table_named("small"), folder / "runs", Console(quiet=True), workers=1, seeds=seeds, labels=labels)


def _lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "results" / "small.jsonl").read_text().splitlines()]


def test_finished_cells_are_not_run_again_and_missing_ones_are(tables: Path) -> None:
    _run(tables, seeds=[0])
    first = _lines(tables)
    assert {(row["label"], row["seed"]) for row in first} == {
        ("local", 0), ("fedavg", 0), ("ditto (lambda=0.1)", 0), ("ditto (lambda=1.0)", 0),
    }  # fmt: skip
    _run(tables)
    assert _lines(tables)[:4] == first
    assert [row["seed"] for row in _lines(tables)[4:]] == [1, 1, 1, 1]
    runs = sorted((tables / "runs").iterdir())
    _run(tables)
    assert sorted((tables / "runs").iterdir()) == runs


def test_what_is_finished_stands_in_the_runs_of_what_is_missing(tables: Path) -> None:
    _run(tables, seeds=[0], labels=["local", "ditto (lambda=0.1)"])
    first = _lines(tables)
    assert [row["label"] for row in first] == ["local", "ditto (lambda=0.1)"]
    _run(tables, seeds=[0])
    assert [row["label"] for row in _lines(tables)[2:]] == ["fedavg", "ditto (lambda=1.0)"]
    later = open_run(tables / "runs" / "small-2")
    alone = later.tables.timings[later.tables.timings["algorithm"] == "local"]
    assert alone["seconds"].tolist() == [first[0]["seconds"]]  # it was not trained again
    gains = {row["label"]: row["gain_mean"] for row in later.rows}
    values = {str(row["label"]): row["mean"] for row in _lines(tables)}
    for label in ("fedavg", "ditto (lambda=1.0)"):
        assert gains[label] == pytest.approx(100 * (values[label] - values["local"]), abs=1e-3)
    _run(tables, labels=["ditto (lambda=0.1)"])  # of two of one name, it keeps its label; LOCAL has no second seed yet
    assert [(row["label"], row["seed"]) for row in _lines(tables)[4:]] == [("local", 1), ("ditto (lambda=0.1)", 1)]


def _interrupted(tables: Path, monkeypatch: pytest.MonkeyPatch, seeds: list[int], labels: list[str]) -> None:
    """A run that is stopped before anything is finished."""
    from benchmarks.reproduce import running

    from coterie.errors import Interrupted

    def interrupted(*arguments: object, **options: object) -> None:
        raise Interrupted(tables, signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(running, "resume", interrupted)
        with pytest.raises(Interrupted):
            _run(tables, seeds=seeds, labels=labels)


def test_an_interrupted_run_goes_on_only_where_all_that_is_left_of_it_is_asked_for(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupted(tables, monkeypatch, seeds=[0], labels=["fedavg", "ditto (lambda=0.1)"])
    _run(tables, seeds=[0], labels=["fedavg"])
    assert sorted(path.name for path in (tables / "runs").iterdir()) == ["small-1", "small-2"]
    assert [row["label"] for row in _lines(tables)] == ["local", "fedavg"]
    _run(tables, seeds=[0], labels=["ditto (lambda=0.1)"])  # what small-1 has left would train LOCAL and FedAvg again
    assert sorted(path.name for path in (tables / "runs").iterdir()) == ["small-1", "small-2", "small-3"]
    assert [row["label"] for row in _lines(tables)[2:]] == ["ditto (lambda=0.1)"]


def test_an_interrupted_run_goes_on_where_all_of_it_is_asked_for(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _interrupted(tables, monkeypatch, seeds=[0], labels=["fedavg"])
    other = tables / "runs" / "small-tuned-1"  # of a table whose name begins alike
    other.mkdir()
    _run(tables, seeds=[1], labels=["fedavg"])
    assert [(row["label"], row["seed"]) for row in _lines(tables)] == [("local", 1), ("fedavg", 1)]
    _run(tables, labels=["fedavg"])
    assert [(row["label"], row["seed"]) for row in _lines(tables)[2:]] == [("local", 0), ("fedavg", 0)]
    assert sorted(path.name for path in (tables / "runs").iterdir()) == ["small-1", "small-2", "small-tuned-1"]


def test_a_system_that_the_table_lacks_is_named(tables: Path) -> None:
    from coterie.errors import CoterieError

    with pytest.raises(CoterieError, match="no system fedamp: choose among local, fedavg"):
        _run(tables, labels=["fedamp"])


def test_a_cell_is_another_one_where_its_settings_are(tables: Path) -> None:
    from benchmarks.reproduce.cells import table_named
    from benchmarks.reproduce.running import collect, missing

    from coterie.errors import CoterieError

    _run(tables, seeds=[0])
    changed = {**SMALL, "algorithms": ["fedavg", {"name": "ditto", "lambda": 0.2}, {"name": "ditto", "lambda": 1.0}]}
    (tables / "small.yaml").write_text(yaml.safe_dump(changed))
    left = [(cell.label, cell.seed) for cell in missing(table_named("small")) if cell.seed == 0]
    assert left == [("ditto (lambda=0.2)", 0)]
    (tables / "small.yaml").write_text(yaml.safe_dump({**SMALL, "rounds": 3}))
    assert len(missing(table_named("small"))) == 8
    with pytest.raises(CoterieError, match="other settings"):
        collect(table_named("small"), tables / "runs" / "small-1")


def test_rows_are_what_the_run_says_and_can_be_compared_as_a_run(tables: Path, tmp_path: Path) -> None:
    from benchmarks.reproduce.cells import table_named
    from benchmarks.reproduce.filled import as_run
    from benchmarks.reproduce.told import markdown

    _run(tables)
    told = {row["label"]: row for row in open_run(tables / "runs" / "small-1").rows}
    again = {row["label"]: row for row in open_run(as_run(table_named("small"), tmp_path / "again").path).rows}
    assert list(again) == list(told)
    for label, row in told.items():
        for key in ("accuracy_mean", "accuracy_std", "r_acc", "ptr", "gain_mean"):
            assert again[label][key] == pytest.approx(row[key], abs=2e-6)
    ours, theirs = (compare([path]) for path in (tmp_path / "again", tables / "runs" / "small-1"))
    assert [each.test for each in ours.tests] == [each.test for each in theirs.tests]
    lines = list(markdown(table_named("small")))
    accuracy = told["fedavg"]["accuracy_mean"]
    (fedavg,) = (line for line in lines if line.startswith("| fedavg "))
    assert "| .4000 / -.2000 / .0000 |" in fedavg
    assert f"| {f'{accuracy:.4f}'[1:]} ± " in fedavg
    assert f"| {f'{accuracy - 0.4:+.4f}'.replace('0.', '.', 1)} | 2 of 2 |" in fedavg


def test_the_tables_of_the_documentation_are_those_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks.reproduce write docs/results.md` brings them up to date."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.reproduce.cells import tables as published
    from benchmarks.reproduce.told import PLACE, written

    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert written(text, published()) == text
    assert text.count("<!-- table ") == len(PLACE.findall(text))


def test_the_published_figures_belong_to_methods_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.reproduce.cells import tables as published

    for table in published().values():
        assert set(table.published) <= {cell.label for cell in table.cells}, table.name
        assert all(len(told) <= len(table.columns) for told in table.published.values()), table.name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks/reproduce/grids").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_grid_gives_every_method_the_same_and_spares_the_reported_seeds(path: Path) -> None:
    config = load_config(path)
    assert config.tune is not None
    assert not set(config.tune.seeds or config.seeds) & set(config.seeds)
    assert "training.lr" in config.tune.space
    names = {entry.label or entry.name for entry in config.algorithms}
    assert {key.split(".")[0] for key in config.tune.space} - {"training"} <= names
    assert len({len(values) for key, values in config.tune.space.items() if key != "training.lr"}) <= 1
