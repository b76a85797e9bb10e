"""The experiments in ``examples/`` are valid, and where the data are, they could start."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from coterie.config import load_config
from coterie.errors import CoterieError
from coterie.experiment import Experiment
from coterie.experiment.plan import plan

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
METHODS = ["ditto", "fedavg", "fedavg-ft", "feddwa", "fedora", "local"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_valid_experiment(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert config.federation.partition.rule == "natural"
    assert sorted(system.algorithm for system in plan(config).systems) == METHODS
    with pytest.raises(CoterieError, match=str(tmp_path)):  # all that is lacking are the files
        Experiment(config, data_dir=tmp_path).check()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_its_data(path: Path) -> None:
    root = os.environ.get("COTERIE_DATA")
    if not root:
        pytest.skip("COTERIE_DATA is not set")
    try:
        federation = Experiment(load_config(path), data_dir=Path(root)).check()
    except CoterieError as error:
        if "put the published files there" in str(error):
            pytest.skip(f"COTERIE_DATA lacks the files: {error}")
        raise
    assert federation.k > 3
    assert int(federation.validation.n.min()) > 0


def test_the_page_lists_every_example() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.*?\]\((.*?)\.yaml\)", page, re.MULTILINE) == [
        "four-hospitals", "leaf-nitrogen", "wheat-yield", "schools", "landmine", "human-activity", "shakespeare"
    ]  # fmt: skip
    assert {path.stem for path in EXAMPLES} == set(re.findall(r"\((\S+)\.yaml\)", page))
