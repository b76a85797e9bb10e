"""The model ``auto`` is sized from the data once, and stored with the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import coterie
from coterie.config import parse_config
from coterie.experiment import Experiment
from coterie.yamltext import read_yaml

SECTION: dict[str, Any] = {"source": "synthetic", "clients": 3, "examples": 50, "partition": {"rule": "natural"}}
CONFIG = {"federation": SECTION, "model": "auto", "algorithms": ["local"], "rounds": 1, "seeds": [0], "page": False}


def sized(**changes: Any) -> dict[str, Any]:
    experiment = Experiment(parse_config({**CONFIG, **changes}))
    experiment.check()
    assert experiment.model.options == experiment.config.model.options
    return dict(experiment.model.options)


def test_what_the_size_depends_on_is_found_in_the_data() -> None:
    assert sized() == {"inputs": "numbers", "examples": 30}


def test_what_was_given_wins() -> None:
    assert sized(model={"name": "auto", "examples": 7}) == {"inputs": "numbers", "examples": 7}
    assert sized(model={"name": "mlp", "hidden": [3]}) == {"hidden": [3]}


def test_text_is_recognised(tmp_path: Path) -> None:
    play = tmp_path / "shakespeare" / "input.txt"
    play.parent.mkdir()
    play.write_text("\n\n".join(f"{name}:\n{'to be or not ' * 10}" for name in ("A", "B")))
    section = {"source": "shakespeare", "partition": {"rule": "natural"}, "steps": 4, "min_characters": 60}
    experiment = Experiment(parse_config({**CONFIG, "federation": section}), data_dir=tmp_path)
    experiment.check()
    assert experiment.model.options["inputs"] == "codes"


def test_the_run_directory_holds_it(tmp_path: Path) -> None:
    result = coterie.run(CONFIG, output=tmp_path / "run")
    stored = read_yaml((tmp_path / "run" / "config.yaml").read_text(), "config.yaml")
    assert stored["model"] == {"name": "auto", "inputs": "numbers", "examples": 30}
    assert result.rows[0]["algorithm"] == "local"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_search_tries_the_network_of_the_run(tmp_path: Path, processes: int) -> None:
    """Also in its workers; the best result is then that of the run with the best setting."""
    section = SECTION | {"clients": 4, "examples": 40, "train": 24, "validation": 8, "test": 8}
    config = {**CONFIG, "federation": section, "rounds": 2, "evaluate_every": 1, "metric": "loss"}
    config |= {"processes": processes, "threads": 1}
    space = {"training.lr": [0.01, 0.5]}
    found = coterie.tune(config, algorithms=["local"], space=space, output=tmp_path / "search")
    coterie.run(found.config, output=tmp_path / "run")
    assert read_yaml((tmp_path / "run" / "config.yaml").read_text(), "config.yaml")["model"]["examples"] == 24
    table = pd.read_parquet(tmp_path / "run" / "history.parquet")
    losses = table.loc[(table["split"] == "validation") & (table["metric"] == "loss"), "value"]
    assert min(row["validation_loss"] for row in found.rows) == losses.min()
