"""The table that a run ends with: one line a system, the best values in bold."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coterie.evaluation.catalogue import metric_of, title_of
from coterie.runs.columns import Row, columns, metric_of_rows
from coterie.runs.sheet import Sheet, result_sheet

PROTOCOLS = {
    "best_val": "Each system at its round of best mean validation {metric} (report: best_val).",
    "last": "Each system at its last round (report: last).",
    "best_test": (
        "Each system at its round of best mean test {metric} (report: best_test), "
        "which is optimistic: chosen on test data."
    ),
}


def result_table(rows: Sequence[Row], *, title: str | None = None) -> Table:
    """Return the rows of a summary as a table for a terminal of 80 to 100 columns.

    The caption states the protocol, what the deviations are over, and which clients failed. Of each column
    the best value is bold; where several print alike, all of them are.

    Args:
        rows: what `coterie.evaluation.summarise` returned, or `RunDirectory.read_summary`.
        title: a line above the table, for example the experiment's name.

    """
    notes = paragraphs(caption(rows))
    return terminal(result_sheet(rows, columns(metric_of_rows(rows)), title=title or "", notes=notes))


def terminal(sheet: Sheet) -> Table:
    """Return a sheet as a table for a terminal; the best of each column is bold."""
    table = plain_table(escape(sheet.title) or None, Text("\n".join(sheet.notes)))
    table.add_column(Text(sheet.headers[0]), min_width=10, overflow="fold")
    for header in sheet.headers[1:]:
        table.add_column(Text(header), justify="right", no_wrap=True)
    for row in sheet.rows:
        table.add_row(*(Text(cell.text, style="bold" if cell.mark == "best" else "") for cell in row))
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


REASONS = 4
"""So many different reasons stand below a table, with the clients that they concern."""


def caption(rows: Sequence[Row]) -> list[str]:
    """Return what stands below a table of results: the protocol, what deviations are over, and which clients failed."""
    metric = metric_of_rows(rows)
    seeds = max((len(row.get("seeds") or ()) for row in rows), default=0)
    over = f"{seeds} seeds" if seeds != 1 else "1 seed"
    means = f"{title_of(metric)}: mean over clients"
    lines = protocols(rows)
    lines.append(f"{means} ± deviation over {over}." if seeds > 1 else f"{means}, {over}.")
    if metric_of(metric).is_share:
        lines.append("Gain over training alone: mean ± deviation over clients.")
    lines.append("PTR: share of clients no worse off than alone.")
    lines += [f"{row['label']}: {_listed(row['failed_clients'])} failed." for row in rows if row.get("failed_clients")]
    lines += without(rows)
    if len({row.get("clients_without_result") for row in rows}) > 1:
        lines.append("So means are over different clients; gain and PTR are over those with a result alone, too.")
    return lines + [_targets(rows, target) for target in _all_targets(rows)]


def protocols(rows: Sequence[Row]) -> list[str]:
    """Say which round of each system is reported."""
    metric = metric_of_rows(rows)
    word = {"accuracy": "accuracy", "mae": "error"}.get(metric, title_of(metric))
    return [PROTOCOLS[report].format(metric=word) for report in dict.fromkeys(row["report"] for row in rows)]


def without(rows: Sequence[Row]) -> list[str]:
    """Name the clients that a mean leaves out because their data, or their results, do not define the metric.

    What holds for all systems is said once, and metrics that lack the same clients are named together.
    """
    found: dict[str, dict[tuple[tuple[str, str], ...], list[str]]] = {}  # system, clients with reasons, metrics
    told = [row.get("undefined") or {} for row in rows]
    for row, undefined in zip(rows, told, strict=True):
        common = bool(told) and all(undefined == other for other in told)
        for metric, clients in undefined.items():
            system = "" if common else f"{row['label']}, "
            metrics = found.setdefault(system, {}).setdefault(tuple(clients.items()), [])
            if metric not in metrics:
                metrics.append(metric)
    return [
        f"{system}{', '.join(metrics)}: without {_excused(clients)}."
        for system, those in found.items()
        for clients, metrics in those.items()
    ]


def _excused(clients: Sequence[tuple[str, str]]) -> str:
    """Name clients, those with one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in clients:
        by_reason.setdefault(reason, []).append(name)
    told = [f"{_listed(names)} ({reason})" for reason, names in list(by_reason.items())[:REASONS]]
    more = sum(len(names) for names in list(by_reason.values())[REASONS:])
    return "; ".join(told) + (f"; and {more} more, see undefined.csv" if more else "")


def _all_targets(rows: Sequence[Row]) -> list[str]:
    """The targets that any row has; of several runs each may have its own."""
    return list(dict.fromkeys(target for row in rows for target in row.get("rounds_to_target") or ()))


def _targets(rows: Sequence[Row], target: str) -> str:
    """Say how many rounds each system that has a target needs to reach it (mean over seeds)."""
    told = {str(row["label"]): row.get("rounds_to_target") or {} for row in rows}
    needed = {name: rounds[target] for name, rounds in told.items() if target in rounds}
    reached = ", ".join(f"{name} {rounds:.0f}" for name, rounds in needed.items() if rounds is not None)
    missed = ", ".join(name for name, rounds in needed.items() if rounds is None)
    parts = ([reached] if reached else []) + ([f"not reached: {missed}"] if missed else [])
    return f"Rounds to {target}: {'; '.join(parts)}."


def paragraphs(lines: Sequence[str]) -> list[str]:
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
