from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import coterie
from coterie import Federation

KEYS: dict[str, Any] = {"algorithms": ["local"], "rounds": 1, "seeds": [0], "report": "last", "page": False}


def shown(output: Path, federation: Federation | None = None, **keys: Any) -> str:
    """What is printed."""
    console = Console(file=io.StringIO(), width=200)
    rows = [[float(i), 1.0, 0.0] for i in range(10)]
    federation = federation or Federation.from_arrays({"a": (rows, [0, 1] * 5)})
    coterie.run(federation, output=output, console=console, **(KEYS | keys))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_run_says_which_layer_is_why_clients_train_in_turn(tmp_path: Path) -> None:
    line = "clients train one after the other: recurrent layers have no batching rule: layer 'gru' (GRU)"
    assert line in shown(tmp_path / "gru", model="gru")
    assert "one after the other:" not in shown(tmp_path / "mlp", model="linear")


def test_methods_without_a_body_to_share_are_named(tmp_path: Path) -> None:
    """They are LOCAL in disguise, or train nothing."""
    methods = ["local", "fedper", "fedbabu", {"name": "fedrep", "head_layers": 0}, "lg-fedavg"]
    said = shown(tmp_path / "linear", model="linear", algorithms=methods)
    assert "fedper, fedbabu, lg-fedavg: all layers of the model are its head" in said
    assert "are its head" not in shown(tmp_path / "mlp", model="mlp", algorithms=methods)


def test_methods_that_compare_on_validation_examples_are_named_where_there_are_none(tmp_path: Path) -> None:
    """FedFomo without them nearly is LOCAL."""
    methods = ["local", "fedavg", "fedfomo", {"name": "fedora", "variant": "paper"}]
    arrays = [[float(i), 1.0, 0.0] for i in range(10)], [0, 1] * 5
    constant, federico = [{"name": "fedora", "lambda_rule": "constant"}], ["federico"]
    by_validation = [{"name": "federico", "evidence": "validation"}]
    with_some, none = {"train": arrays, "validation": arrays, "test": arrays}, {"train": arrays, "test": arrays}

    def said(name: str, *clients: Any, algorithms: Any = methods) -> str:
        drawn = {} if with_some in clients else {"validation": 0}
        return shown(tmp_path / name, Federation.from_arrays(clients, **drawn), algorithms=algorithms)

    assert "fedfomo, fedora (paper): models are compared on validation examples, of which no client" in said("no", none)
    assert "of which 1 of 2 clients do not have any" in said("one", with_some, none)
    assert "are compared on" not in said("all", with_some, with_some)
    assert "are compared on" not in said("others", none, algorithms=["fedavg", *constant, *federico])
    assert "federico (decentralised): models are compared on" in said(
        "evidence", none, algorithms=["local", *by_validation]
    )


def test_without_a_console_they_go_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [[float(i), 1.0, 0.0] for i in range(10)]
    keys = KEYS | {"model": "linear", "algorithms": ["fedper"]}
    coterie.run(Federation.from_arrays({"a": (rows, [0, 1] * 5)}), output=tmp_path / "run", **keys)
    assert [(r.name, r.levelname) for r in caplog.records if "are its head" in r.message] == [
        ("coterie.experiment", "WARNING")
    ]
