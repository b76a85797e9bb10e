"""The table at the end of a run, as a terminal shows it."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from coterie.runs import result_table


def row(label: str, **changes: Any) -> dict[str, Any]:
    """Return a summary row with plausible numbers."""
    return {
        "algorithm": label.split(" ")[0],
        "label": label,
        "reference": label == "local",
        "seeds": [0, 1, 2],
        "report": "best_val",
        "accuracy_mean": 0.7642,
        "accuracy_std": 0.0031,
        "r_acc": 0.0,
        "ptr": 1.0,
        "gain_mean": 0.0,
        "gain_std": 0.0,
        "worst": 0.61,
        "worst_decile": 0.62,
        "bytes_up": 0,
        "bytes_down": 0,
        "bytes_peer": 0,
        "seconds": 12.34,
        "rounds_to_target": {},
        "failed_clients": [],
    } | changes


ROWS = [
    row("local"),
    row("fedavg", accuracy_mean=0.6889, r_acc=-0.0976, ptr=0.03, gain_mean=-7.53, gain_std=10.26, worst=0.41),
    row(
        "fedora (released)",
        accuracy_mean=0.8251,
        r_acc=0.0801,
        ptr=0.97,
        gain_mean=6.09,
        gain_std=2.94,
        worst=0.72,
        bytes_up=34_000_000_000,
        bytes_down=34_000_000_000,
        bytes_peer=1_000_000_000,
        seconds=7_000.0,
    ),
]


def shown(rows: list[dict[str, Any]], width: int = 100, *, styles: bool = False, title: str | None = None) -> str:
    """Return what a terminal gets; without its control codes unless ``styles``."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system="standard")
    console.print(result_table(rows, title=title))
    return file.getvalue() if styles else Text.from_ansi(file.getvalue()).plain


@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_number_fits(width: int) -> None:
    text = shown(ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    for cell in ("0.764±0.003", "-0.098", "0.97", "-7.5±10.3", "0.410", "0.620", "69 GB", "1.9 h", "12.3 s"):
        assert cell in text
    assert "…" not in text
    assert "fedora" in text
    assert "(released)" in text


def test_at_100_columns_a_system_takes_one_line() -> None:
    lines = [line for line in shown(ROWS).splitlines() if line.startswith(("local", "fedavg", "fedora"))]
    assert len(lines) == 3
    assert lines[2].split() == [
        "fedora",
        "(released)",
        "0.825±0.003",
        "+0.080",
        "0.97",
        "+6.1±2.9",
        "0.720",
        "0.620",
        "69",
        "GB",
        "1.9",
        "h",
    ]


def bold(rows: list[dict[str, Any]]) -> set[str]:
    """Return the bold cells below the header."""
    body = shown(rows, styles=True).split("─" * 10)[-1]
    return {part.split("\x1b[0m")[0].strip() for part in body.split("\x1b[1m")[1:]}


def test_the_best_is_bold_and_local_cannot_beat_itself() -> None:
    # LOCAL's PTR of 1 against itself is no win; all three share the worst decile.
    assert bold(ROWS) == {"0.825±0.003", "+0.080", "0.97", "+6.1±2.9", "0.720", "0.620"}


def test_cells_that_print_alike_are_bold_alike() -> None:
    rows = [
        row("local", accuracy_mean=0.5),
        row("a", accuracy_mean=0.70004, ptr=0.5),
        row("b", accuracy_mean=0.70001),
    ]
    body = shown(rows, styles=True)
    assert body.count("\x1b[1m  0.700±0.003") + body.count("\x1b[1m0.700±0.003") == 2


def test_a_single_system_wins_nothing() -> None:
    assert bold([row("fedavg")]) == set()


def test_the_caption_states_the_protocol() -> None:
    assert "round of best mean validation accuracy (report: best_val)" in shown(ROWS)
    assert "3 seeds" in shown(ROWS)
    assert "report: last" in shown([row("local", report="last")])
    text = " ".join(shown([row("local", report="best_test")]).split())
    assert "optimistic: chosen on test data" in text
    assert "optimistic" not in shown(ROWS)


def test_one_seed_has_no_deviation() -> None:
    text = shown([row("local", seeds=[0], accuracy_std=0.0)])
    assert "0.764 " in text
    assert "0.764±" not in text
    assert "1 seed." in text


def test_what_is_undefined_is_a_dash() -> None:
    lonely = row("fedavg", r_acc=None, ptr=None, gain_mean=None, gain_std=None, seconds=None)
    line = next(line for line in shown([lonely]).splitlines() if line.startswith("fedavg"))
    assert line.split() == ["fedavg", "0.764±0.003", "–", "–", "–", "0.610", "0.620", "0", "B", "–"]


def test_targets_and_failures_are_told_below() -> None:
    rows = [
        row("local", rounds_to_target={"0.7": None, "0.9": None}),
        row("fedora", rounds_to_target={"0.7": 120.0, "0.9": None}, failed_clients=[f"c{i}" for i in range(6)]),
    ]
    text = " ".join(shown(rows).split())
    assert "Rounds to 0.7: fedora 120; not reached: local." in text
    assert "Rounds to 0.9: not reached: local, fedora." in text
    assert "fedora: c0, c1, c2, c3 and 2 more failed." in text


def test_a_regression_shows_errors_and_the_smallest_is_bold() -> None:
    regression = {"accuracy_mean": None, "r_acc": None, "gain_mean": None}
    rows = [
        row("local", mae_mean=0.5576, mae_std=0.01, r_mae=0.0, **regression),
        row("fedora", mae_mean=0.4185, mae_std=0.02, r_mae=0.1499, worst=0.5, **regression),
        row("fedavg", mae_mean=0.6, mae_std=0.02, r_mae=-0.2, ptr=0.2, worst=0.9, **regression),
    ]
    text = shown(rows)
    assert "MAE" in text
    assert "+0.150" in text
    assert "Accuracy" not in text
    assert {"0.4185±0.02", "+0.150", "0.5"} <= bold(rows)


@pytest.mark.parametrize(
    ("size", "printed"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_950, "10 kB"),
        (999_600, "1.0 MB"),
        (5e9, "5.0 GB"),
    ],
)
def test_sizes(size: int, printed: str) -> None:
    assert printed in shown([row("local", bytes_up=size)])


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [(0.04, "0.0 s"), (99.9, "99.9 s"), (99.96, "2 min"), (5_969, "99 min"), (6_000, "1.7 h")],
)
def test_times(seconds: float, printed: str) -> None:
    assert printed in shown([row("local", seconds=seconds)])


def test_title_and_no_rows() -> None:
    assert "fedora/rotated-mnist" in shown(ROWS, title="fedora/rotated-mnist")
    shown([])
