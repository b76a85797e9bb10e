"""Listings for people and, with --json, for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import coterie, error_of, tiny

import coterie as package
from coterie.federation.datasets import SOURCES, Source


def test_every_command_has_help_worth_reading() -> None:
    assert coterie("--help").exit_code == 0
    for command in ("run", "resume", "tune", "plot", "show", "algorithms", "cite", "datasets", "presets"):
        result = coterie(command, "--help")
        assert result.exit_code == 0
        assert command in coterie("--help").stdout
        assert len(result.stdout) > 500


def test_version() -> None:
    assert coterie("--version").stdout == f"coterie {package.__version__}\n"


def test_presets() -> None:
    listed = json.loads(coterie("presets", "--json").stdout)
    assert listed[0]["name"] == "quickstart"
    table = coterie("presets").stdout
    assert all(item["name"] in table and item["about"] for item in listed)
    assert "full" in table.splitlines()[0]
    assert "fast" in table.splitlines()[0]
    costs = {item["name"]: item["cost"] for item in listed}
    assert set(costs["fedora/rotated-mnist"]) == {"full", "fast"}
    assert set(costs["quickstart"]) == {"full"}
    row = next(line for line in table.splitlines() if line.startswith("fedora/rotated-mnist "))
    assert all(cost in row for cost in costs["fedora/rotated-mnist"].values())


def test_a_preset_is_printed_as_a_file_to_start_from(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(coterie("presets", "quickstart").stdout)
    assert package.load_config(path) == package.load_config("quickstart")
    assert json.loads(coterie("presets", "quickstart", "--json").stdout)["yaml"] == path.read_text()
    assert "did you mean quickstart?" in error_of(coterie("presets", "quikstart"))


def test_a_preset_is_printed_in_either_size(tmp_path: Path) -> None:
    name = "fedora/rotated-mnist"
    path = tmp_path / "mine.yaml"
    for size in ("full", "fast"):
        path.write_text(coterie("presets", f"{name}:{size}").stdout)
        assert path.read_text().startswith("# FEDORA, table 1")
        assert package.load_config(path) == package.load_config(f"{name}:{size}")
    card = json.loads(coterie("presets", f"{name}:fast", "--json").stdout)
    assert (card["name"], card["size"], card["yaml"]) == (name, "fast", path.read_text())
    assert coterie("presets", name).stdout == coterie("presets", f"{name}:full").stdout
    assert "did you mean fedora/rotated-mnist:fast?" in error_of(coterie("run", f"{name}:quick"))


def test_the_run_of_a_fast_size_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = "federation={source: digits, partition: {rule: rotation, clients: 3}, train: 8, validation: 4, test: 4}"
    result = coterie("run", "fedora/rotated-mnist:fast", "-s", sizes, "-s", "rounds=1", "-s", "algorithms=[local]")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "runs/fedora-rotated-mnist-fast-1/summary.json").is_file()


def test_datasets() -> None:
    listed = json.loads(coterie("datasets", "--json").stdout)
    assert {"digits", "mnist", "fashion-mnist"} <= {item["name"] for item in listed["sources"]}
    assert {"rotation", "iid", "dirichlet", "pathological"} <= {item["name"] for item in listed["rules"]}
    table = coterie("datasets").stdout
    assert "digits" in table
    assert "dirichlet" in table
    assert "mnist/*-ubyte.gz" in table
    # every source but those that come with the package says which files it reads
    assert {item["name"] for item in listed["sources"] if not item["files"]} == {
        "digits",
        "python",
        "sine",
        "synthetic",
    }


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_a_warning_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sine = SOURCES["sine"].load(None)
    uneven = replace(sine, groups={"side": ["left"] * 15 + ["right"] * 785})
    monkeypatch.setitem(SOURCES, "sine", Source("sine", "", "", lambda data_dir, seed: uneven))
    path = tmp_path / "sides.yaml"
    path.write_text("federation: {source: sine, partition: {rule: natural, min_examples: 20}}\n")
    result = coterie("show", path)
    assert result.exit_code == 0
    assert result.stderr == (
        "note: sine: groups with fewer than 20 examples are left out (left); partition.min_examples sets the limit.\n"
    )


def test_algorithms() -> None:
    listed = {item["name"]: item for item in json.loads(coterie("algorithms", "--json").stdout)}
    expected = {"local", "fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "ditto", "fedamp", "fedora"}
    assert expected <= set(listed)
    assert listed["fedora"]["variants"] == ["released", "paper"]
    table = coterie("algorithms").stdout
    assert all(name in table for name in expected)


def test_one_algorithm_with_its_options() -> None:
    card = json.loads(coterie("algorithms", "ditto", "--json").stdout)
    assert "lambda" in {option["name"] for option in card["options"]}
    text = coterie("algorithms", "fedora").stdout
    assert all(word in text for word in ("KDD 2023", "option", "alpha", "released", "paper", "exp_cos"))
    assert "did you mean 'fedora'?" in error_of(coterie("algorithms", "fedra"))


def test_show_prints_table_and_grid(tmp_path: Path) -> None:
    page = tmp_path / "classes.html"
    result = coterie("show", tiny(tmp_path), "--html", page)
    assert result.exit_code == 0
    for name in ("client-00", "client-03", "angle", "train examples by client and class"):
        assert name in result.stdout
    assert "4 clients of digits: inputs 1 x 8 x 8, 10 classes" in result.stdout
    assert "plotly" in page.read_text(encoding="utf-8")


def test_show_for_programs(tmp_path: Path) -> None:
    shown = json.loads(coterie("show", tiny(tmp_path), "--json", "-s", "federation.partition.clients=3").stdout)
    assert [row["train"] for row in shown["clients"]] == [12, 12, 12]
    assert [row["angle"] for row in shown["clients"]] == [0, 120, 240]


def test_show_lists_only_the_first_of_many_clients(tmp_path: Path) -> None:
    many = ["-s", "federation.partition.clients=80", "-s", "federation.train=4"]
    many += ["-s", "federation.validation=2", "-s", "federation.test=2"]
    result = coterie("show", tiny(tmp_path), *many)
    assert "and 20 more; --json lists all" in result.stdout
    assert len(json.loads(coterie("show", tiny(tmp_path), *many, "--json").stdout)["clients"]) == 80


def test_show_of_another_seed_is_another_division(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    one, other = (coterie("show", path, "--seed", seed).stdout for seed in ("0", "1"))
    assert one != other
    assert one == coterie("show", path).stdout
    fixed = ("show", path, "-s", "federation.seed=1", "--seed")
    assert coterie(*fixed, "1").stdout == other
    assert error_of(coterie(*fixed, "0")) == (
        "--seed 0: federation.seed is 1, so that every seed has the same division; leave it out, or add "
        "-s federation.seed=0."
    )


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["presets"], ["--version"]])
def test_quick_answers_do_not_wait_for_torch(command: list[str]) -> None:
    code = (
        "import sys\nfrom coterie.cli import app\n"
        f"app({command!r}, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_public_names_are_there() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'fedora'"):
        _ = package.fedora
