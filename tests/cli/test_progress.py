"""What is shown while a run goes on, and what a signal does to it."""

from __future__ import annotations

import signal
import threading
from io import StringIO
from pathlib import Path

import pytest
from cli_helpers import tiny
from rich.console import Console

import coterie
from coterie.experiment.display import Standing
from coterie.experiment.interrupt import listening


def shown(folder: Path, *, terminal: bool) -> str:
    """Everything that a run writes to its console."""
    console = Console(file=StringIO(), force_terminal=terminal, width=100, color_system=None)
    coterie.run(tiny(folder), output=folder / "out", console=console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_terminal_sees_bars_with_round_accuracy_gain_and_time_left(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=True)
    for word in ("ditto  seed 0", "round 4/4", "run 2/2", "accuracy 0.", "gain ", " pp", "━"):
        assert word in text


def test_a_log_file_sees_one_line_a_run(tmp_path: Path) -> None:
    first, *lines = shown(tmp_path, terminal=False).splitlines()
    assert first.startswith("2 runs, into ")
    assert [line.split()[:4] for line in lines] == [["done", name, "seed", "0"] for name in ("local", "ditto")]
    assert "gain" in lines[1]
    assert "gain" not in lines[0]


@pytest.mark.parametrize(
    ("standing", "text"),
    [
        (Standing(3, "accuracy", 0.7414, None), "accuracy 0.741"),
        (Standing(3, "accuracy", 0.7414, 2.34), "accuracy 0.741  gain +2.3 pp"),
        (Standing(3, "mae", 0.5, -0.0125), "mae 0.5  gain -0.0125"),
        (Standing(3, "rmse", 356716878.6, 44027985.78), "rmse 3.567e+08  gain +4.4e+07"),
        (Standing(3, "r2", 0.5, -0.0125), "r2 0.500  gain -0.0125"),
    ],
)
def test_how_a_run_stands(standing: Standing, text: str) -> None:
    assert str(standing) == text


def test_the_first_signal_is_noted_and_the_second_ctrl_c_stops_at_once() -> None:
    notices: list[str] = []
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with listening(lambda: notices.append("saving")) as request:
        assert request.number is None
        signal.raise_signal(signal.SIGTERM)
        assert request.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert notices == ["saving"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_run_in_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with listening(lambda: None) as request:
            seen.extend([signal.getsignal(signal.SIGINT), request.number])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, None]
