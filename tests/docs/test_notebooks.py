"""Notebooks do what their text says: every cell is executed, in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from .blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code(notebook: Path) -> list[str]:
    """The text of the code cells."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def executed(notebook: Path) -> dict[str, Any]:
    """What the cells define."""
    threads = torch.get_num_threads()  # a run sets them for the whole process
    names: dict[str, Any] = {"__name__": "notebook"}
    try:
        for number, text in enumerate(code(notebook)):
            exec(compile(text, f"{notebook.name}, cell {number}", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    return names


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = executed(ROOT / "docs" / "notebooks" / "own_data.ipynb")
    by_label = found["result"].summary.set_index("algorithm")
    # the sentence of the notebook about FedAvg and a personalised method
    assert by_label.loc["fedavg", "gain_mean"] < -5
    assert by_label.loc["fedora", "gain_mean"] > -1
    assert found["federation"].names == ("east", "north", "south", "west")
    assert (tmp_path / "runs/own-data/config.yaml").exists()


def test_notebooks_are_stored_without_outputs() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["own_data.ipynb"]
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell.get("outputs")]
