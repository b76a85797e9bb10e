from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from coterie.federation import ClientData, Federation, build_federation
from coterie.federation.show import class_grid, class_plot, describe


def printed(federation: Federation, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(class_grid(federation))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def plain(federation: Federation) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(class_grid(federation))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_table(make_federation: Callable[..., Federation]) -> None:
    frame = describe(make_federation())
    assert frame.columns.tolist() == ["client", "train", "validation", "test", "classes", "angle"]
    assert frame["client"].tolist() == ["ann", "bob", "cid"]
    assert frame["train"].tolist() == [4, 2, 3]
    assert frame["classes"].tolist() == [3, 1, 2]
    assert frame["angle"].tolist() == [0.0, 10.0, 20.0]


def test_grid_shows_the_counts(make_federation: Callable[..., Federation]) -> None:
    lines = plain(make_federation())
    assert lines[0].split() == ["client", "n", "0", "1", "2"]
    assert lines[1].split() == ["ann", "4", "2", "1", "1"]
    assert lines[2].split() == ["bob", "2", "2"]
    assert "48;2;64;196;170" in printed(make_federation())  # the largest count has the brightest colour


def test_grid_joins_clients_above_60() -> None:
    section = {"source": "digits", "partition": {"rule": "iid", "clients": 130}}
    federation = build_federation(section, seed=0)
    lines = plain(federation)
    assert len(lines) <= 62
    assert "client-000 … client-002" in lines[1]
    assert lines[-1].strip().endswith("each row joins 3 clients")
    assert lines[44].startswith("client-129 ")
    cells = sum(int(cell) for line in lines[1:-1] for cell in line.split("client-")[-1].split()[2:])
    assert cells == federation.train.total


def test_grid_of_many_classes_fits_the_screen() -> None:
    data = ClientData(torch.zeros(60, 1), torch.arange(60), torch.tensor([0, 20, 60]))
    federation = Federation(("a", "b"), data, data, data, "classification", 60)
    assert max(len(line) for line in plain(federation)) <= 100


def test_regression(make_federation: Callable[..., Federation]) -> None:
    data = ClientData(torch.zeros(5, 2), torch.zeros(5, 1), torch.tensor([0, 2, 5]))
    federation = Federation(("a", "b"), data, data, data, "regression", 1)
    assert describe(federation).columns.tolist() == ["client", "train", "validation", "test"]
    assert [line.split() for line in plain(federation)[1:3]] == [["a", "2"], ["b", "3"]]
    assert list(class_plot(federation).data[0].y) == [2, 3]


def test_plot(make_federation: Callable[..., Federation], tmp_path: Path) -> None:
    figure = class_plot(make_federation())
    assert [list(bar.y) for bar in figure.data] == [[2, 0, 1], [1, 2, 0], [1, 0, 2]]
    figure.write_html(tmp_path / "plot.html")
    assert "class 2" in (tmp_path / "plot.html").read_text()
