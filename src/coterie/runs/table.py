"""The table that a run ends with: one line a system, the best values in bold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

UNDEFINED = "–"

PROTOCOLS = {
    "best_val": "Each system at its round of best mean validation {metric} (report: best_val).",
    "last": "Each system at its last round (report: last).",
    "best_test": (
        "Each system at its round of best mean test {metric} (report: best_test), "
        "which is optimistic: chosen on test data."
    ),
}


@dataclass(frozen=True)
class Column:
    """One column: its header, the key that it shows and by which the best is found, and how it is printed."""

    header: str
    key: str
    show: Callable[[Row], str]
    better: int = 0  # 1: larger is better, -1: smaller is better, 0: nothing to win
    against_local: bool = False  # LOCAL compared with itself wins nothing
    total: Callable[[Row], float | None] | None = None  # the number to sort by where no single key holds it

    def number(self, row: Row) -> float | None:
        """The number behind the text, None where it is not defined."""
        return self.total(row) if self.total is not None else row.get(self.key)

    def wins(self, row: Row, winner: str | None) -> bool:
        """Whether a row prints the best value of this column (`winner_of`)."""
        exempt = self.against_local and bool(row.get("reference"))
        return (
            self.better != 0 and not exempt and row.get(self.key) is not None and self.show(row).split("±")[0] == winner
        )


def result_table(rows: Sequence[Row], *, title: str | None = None) -> Table:
    """Return the rows of a summary as a table for a terminal of 80 to 100 columns.

    The caption states the protocol, what the deviations are over, and which clients failed. Of each column
    the best value is bold; where several print alike, all of them are.

    Args:
        rows: what `coterie.evaluation.summarise` returned, or `RunDirectory.read_summary`.
        title: a line above the table, for example the experiment's name.

    """
    columns = result_columns(rows)
    table = plain_table(title, result_caption(rows))
    table.add_column("System", min_width=10, overflow="fold")
    for column in columns:
        table.add_column(column.header, justify="right", no_wrap=True)
    best = [winner_of(rows, column) for column in columns]
    for row in rows:
        cells = [Text(str(row["label"]))]
        for column, winner in zip(columns, best, strict=True):
            text = column.show(row)
            cells.append(Text(text, style="bold" if column.wins(row, winner) else ""))
        table.add_row(*cells)
    return table


def plain_table(title: str | None, caption: str | Text) -> Table:
    """Return a table without edges, with what stands above and below it."""
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def result_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns that the rows need."""
    if _regression(rows):
        quality = [
            Column("MAE", "mae_mean", lambda row: _pair(row, "mae_mean", "mae_std", ".4g"), -1),
            Column("R-MAE", "r_mae", lambda row: _one(row, "r_mae", "+.3f"), 1, True),
            Column("PTR", "ptr", lambda row: _one(row, "ptr", ".2f"), 1, True),
            Column("Worst", "worst", lambda row: _one(row, "worst", ".4g"), -1),
            Column("Worst\n10 %", "worst_decile", lambda row: _one(row, "worst_decile", ".4g"), -1),
        ]
    else:
        quality = [
            Column("Accuracy", "accuracy_mean", lambda row: _pair(row, "accuracy_mean", "accuracy_std", ".3f"), 1),
            Column("R-Acc", "r_acc", lambda row: _one(row, "r_acc", "+.3f"), 1, True),
            Column("PTR", "ptr", lambda row: _one(row, "ptr", ".2f"), 1, True),
            Column("Gain\n(points)", "gain_mean", _gain, 1, True),
            Column("Worst", "worst", lambda row: _one(row, "worst", ".3f"), 1),
            Column("Worst\n10 %", "worst_decile", lambda row: _one(row, "worst_decile", ".3f"), 1),
        ]
    return [*quality, Column("Bytes", "", _size, total=_bytes), Column("Time", "seconds", _time)]


def winner_of(rows: Sequence[Row], column: Column) -> str | None:
    """Return the best value of a column as it is printed, None where there is nothing to win."""
    candidates = [
        (column.better * value, column.show(row).split("±")[0])
        for row in rows
        if column.better
        and (value := row.get(column.key)) is not None
        and not (column.against_local and row.get("reference"))
    ]
    return max(candidates)[1] if len(candidates) > 1 else None


def _one(row: Row, key: str, form: str) -> str:
    """Print one number."""
    value = row.get(key)
    return UNDEFINED if value is None else format(value, form)


def _pair(row: Row, key: str, deviation: str, form: str) -> str:
    """Print mean and standard deviation over seeds; one seed has no deviation to speak of."""
    if row.get(key) is None or row.get(deviation) is None or len(row.get("seeds") or ()) < 2:
        return _one(row, key, form)
    return f"{row[key]:{form}}±{row[deviation]:{form}}"


def _gain(row: Row) -> str:
    """Print mean and standard deviation over clients of the individual gain."""
    if row.get("gain_mean") is None:
        return UNDEFINED
    return f"{row['gain_mean']:+.1f}±{row['gain_std']:.1f}"


def _bytes(row: Row) -> float:
    return float(sum(row.get(f"bytes_{way}") or 0 for way in ("up", "down", "peer")))


def _size(row: Row) -> str:
    """Print all bytes that training has moved, up, down and between clients."""
    size = _bytes(row)
    units = iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while size >= 999.5:
        size, unit = size / 1000, next(units)
    return f"{size:.1f} {unit}" if size < 9.95 and unit != "B" else f"{size:.0f} {unit}"


def _time(row: Row) -> str:
    """Print the seconds of a run in the unit that suits them."""
    seconds = row.get("seconds")
    if seconds is None:
        return UNDEFINED
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"


def _regression(rows: Sequence[Row]) -> bool:
    return any("mae_mean" in row for row in rows)


def result_caption(rows: Sequence[Row]) -> Text:
    """Return the lines below the table: the protocol, what the deviations are over, and which clients failed."""
    regression = _regression(rows)
    metric = "error" if regression else "accuracy"
    seeds = max((len(row.get("seeds") or ()) for row in rows), default=0)
    over = f"{seeds} seeds" if seeds != 1 else "1 seed"
    means = f"{'MAE' if regression else 'Accuracy'}: mean over clients"
    lines = [PROTOCOLS[report].format(metric=metric) for report in dict.fromkeys(row["report"] for row in rows)]
    lines.append(f"{means} ± deviation over {over}." if seeds > 1 else f"{means}, {over}.")
    if not regression:
        lines.append("Gain over training alone: mean ± deviation over clients.")
    lines.append("PTR: share of clients no worse off than alone.")
    lines += [f"{row['label']}: {_listed(row['failed_clients'])} failed." for row in rows if row.get("failed_clients")]
    lines += [_targets(rows, target) for target in rows[0].get("rounds_to_target") or ()] if rows else []
    return Text("\n".join(_paragraphs(lines)))


def _targets(rows: Sequence[Row], target: str) -> str:
    """Say how many rounds each system needs to reach a target (mean over seeds)."""
    needed = {str(row["label"]): row["rounds_to_target"].get(target) for row in rows}
    reached = ", ".join(f"{name} {rounds:.0f}" for name, rounds in needed.items() if rounds is not None)
    missed = ", ".join(name for name, rounds in needed.items() if rounds is None)
    parts = ([reached] if reached else []) + ([f"not reached: {missed}"] if missed else [])
    return f"Rounds to {target}: {'; '.join(parts)}."


def _paragraphs(lines: Sequence[str]) -> list[str]:
    """Join short sentences into lines of at most 96 characters."""
    joined: list[str] = []
    for line in lines:
        if joined and len(joined[-1]) + 1 + len(line) <= 96:
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return joined


def _listed(names: Sequence[str]) -> str:
    """Name a few clients and count the others."""
    few = ", ".join(names[:4])
    return few if len(names) <= 4 else f"{few} and {len(names) - 4} more"
