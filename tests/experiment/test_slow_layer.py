from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

import coterie
from coterie import Federation

KEYS: dict[str, Any] = {"algorithms": ["local"], "rounds": 1, "seeds": [0], "report": "last", "page": False}


def shown(output: Path, **keys: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    rows = [[float(i), 1.0, 0.0] for i in range(10)]
    coterie.run(Federation.from_arrays({"a": (rows, [0, 1] * 5)}), output=output, console=console, **KEYS, **keys)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_run_says_which_layer_is_why_clients_train_in_turn(tmp_path: Path) -> None:
    line = "clients train one after the other: recurrent layers have no batching rule: layer 'gru' (GRU)"
    assert line in shown(tmp_path / "gru", model="gru")
    assert "one after the other:" not in shown(tmp_path / "mlp", model="linear")
