"""A tiny experiment, and the command as a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from click.testing import Result
from safetensors.torch import load_file
from typer.testing import CliRunner

from coterie.cli import app

TINY = """\
name: tiny
federation: {source: digits, partition: {rule: rotation, clients: 4}, train: 12, validation: 6, test: 10}
model: {name: mlp, hidden: [8]}
training: {epochs: 1, batch_size: 4, lr: 0.1}
algorithms: [local, {name: ditto, lambda: 0.5}]
rounds: 4
evaluate_every: 2
threads: 1
"""


def coterie(*words: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def tiny(folder: Path) -> Path:
    """The tiny experiment as a file."""
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    return path


def error_of(result: Result) -> str:
    """The one line on stderr of a command that ended with code 2."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of ``summary.json``."""
    rows: list[dict[str, Any]] = json.loads((run / "summary.json").read_text())["rows"]
    return rows


def assert_same_run(one: Path, other: Path) -> None:
    """Equal histories, client tables and models, bit for bit; timings may differ."""
    for table in ("history", "clients"):
        first, second = (pd.read_parquet(run / f"{table}.parquet") for run in (one, other))
        pd.testing.assert_frame_equal(first, second, check_exact=True)
    models = sorted(path.relative_to(one) for path in one.glob("models/**/*.safetensors"))
    assert models == sorted(path.relative_to(other) for path in other.glob("models/**/*.safetensors"))
    assert models
    for path in models:
        first_model, second_model = load_file(one / path), load_file(other / path)
        assert first_model.keys() == second_model.keys()
        assert all(torch.equal(tensor, second_model[name]) for name, tensor in first_model.items())
