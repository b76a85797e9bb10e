"""The model ``auto`` is sized from the data once, and stored with the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
