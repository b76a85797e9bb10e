"""The key ``precision`` from the configuration to the run directory, and what it does not go with."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import coterie
from coterie import Federation
from coterie.config import parse_config
from coterie.errors import CoterieError
from coterie.experiment import setting
from coterie.experiment.experiment import Experiment
from coterie.experiment.plan import plan
from coterie.reports import open_run
from coterie.reports.settings import read_config, settings_of
from coterie.runs import RunDirectory
from coterie.runs.record import Record
from coterie.yamltext import read_yaml

DIGITS: dict[str, Any] = {"source": "digits", "partition": {"rule": "iid", "clients": 3}}
KEYS: dict[str, Any] = {
    "algorithms": ["local", "fedora"], "rounds": 2, "seeds": [0, 1], "report": "last", "page": False, "threads": 1,
    "processes": 1, "model": {"name": "mlp", "hidden": [4]},
}  # fmt: skip


def toy(output: Path, **keys: Any) -> tuple[coterie.Result, str]:
    console = Console(file=io.StringIO(), width=200)
    rows = [[float(i), 1.0, 0.5] for i in range(10)]
    federation = Federation.from_arrays({"a": (rows, [0, 1] * 5), "b": (rows, [1, 0] * 5)})
    result = coterie.run(federation, output=output, console=console, **KEYS, **keys)
    return result, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_states_its_precision_and_that_a_cpu_is_slow(tmp_path: Path) -> None:
    _, told = toy(tmp_path / "low", precision="bf16")
    assert "precision: bf16 is made for GPUs" in told
    assert read_yaml((tmp_path / "low" / "config.yaml").read_text(), "config")["precision"] == "bf16"
    low = open_run(tmp_path / "low")
    config = read_config(low)
    assert {own["precision"] for own in settings_of(low, config).values()} == {"bf16"}
    earlier = {key: value for key, value in config.items() if key != "precision"}  # compares as if it were stated
    assert {own["precision"] for own in settings_of(low, earlier).values()} == {"full"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"precision": "bf16", "dtype": "float64"},
            "precision: bf16 is for models of float32, not float64: remove one",
        ),
        ({"precision": "fp16"}, "precision must be full or bf16, not the text 'fp16'"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        parse_config({"federation": DIGITS, **keys}, where="this")


def test_a_gpu_without_bfloat16_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise CoterieError("precision: Tesla T4 does not compute in bfloat16")

    monkeypatch.setattr(setting, "products_in", none)
    with pytest.raises(CoterieError, match="Tesla T4"):
        Experiment(parse_config({"federation": DIGITS, "precision": "bf16"}, where="this")).check()


def test_the_setting_reaches_the_engine_wherever_it_runs() -> None:
    """Sites and actors make their settings of the same configuration, as JSON has brought it."""
    config = parse_config({"federation": DIGITS, "precision": "bf16"}, where="this")
    there = parse_config(json.loads(json.dumps(config.as_dict())), where="there")
    assert setting.engine_settings(there, next(iter(plan(there)))).precision == "bf16"
    engine = Experiment(there).engine(next(iter(plan(there))))
    assert engine.stack.low == torch.bfloat16


def test_a_run_of_an_earlier_version_goes_on_in_full_precision(tmp_path: Path) -> None:
    """Its record and its configuration have no such key."""
    record = Record.of(RunDirectory.create(tmp_path / "run", "run", overwrite=False))
    recipe = Experiment(parse_config({"federation": DIGITS}, where="this")).recipe()
    record.check_recipe({key: value for key, value in recipe.items() if key != "precision"})
    record.check_recipe(recipe)
    with pytest.raises(CoterieError, match=r"\(precision\)"):
        record.check_recipe({**recipe, "precision": "bf16"})
