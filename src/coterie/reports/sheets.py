"""A comparison as tables: results, tests against the reference, and who beats whom."""

from __future__ import annotations

import csv
import io
from typing import Any

from coterie.evaluation import METRICS
from coterie.evaluation.significance import ALPHA, EXACT
from coterie.reports.comparing import Against, Comparison
from coterie.reports.settings import short_names, text_of
from coterie.runs.columns import UNDEFINED, Column, columns, metric_column, metric_of_rows
from coterie.runs.sheet import Cell, Sheet, result_sheet
from coterie.runs.table import caption, protocols, without

MEANINGS = {
    "mae": "Mean absolute error: mean over clients ± deviation over seeds.",
    "ptr": "PTR: share of clients no worse off than alone.",
    "gain": "Gain over training alone in points: mean ± deviation over clients.",
    "worst": "The client that fares worst, mean over seeds.",
    "worst_decile": "Mean of the tenth of the clients that fares worst, mean over seeds.",
}


def _meaning(column: Column) -> str:
    """What a column holds."""
    title = " ".join(column.header.split())
    if column.name in MEANINGS:
        return MEANINGS[column.name]
    if column.against_local:
        return f"{title}: mean over clients of the relative gain over training alone."
    return f"{title}: mean over clients ± deviation over seeds."


def sheets(comparison: Comparison, *, pairs: bool = False) -> list[Sheet]:
    """All tables of a comparison in the order in which they are printed; ``pairs`` adds who beats whom."""
    found = [results_sheet(comparison)]
    if comparison.tests:
        found.append(tests_sheet(comparison))
        if pairs:
            found.append(pairs_sheet(comparison))
    return found


def results_sheet(comparison: Comparison) -> Sheet:
    """What each system reaches: in all metrics, or in one metric for each value of the keys ``by``."""
    rows = list(comparison.rows)
    shown = columns(metric_of_rows(rows))
    if not comparison.by:
        return result_sheet(rows, shown, notes=[*caption(rows), *_seeds(comparison)])
    column = next((c for c in shown if c.name == comparison.measure.name), None) or metric_column(
        comparison.measure.name
    )
    groups = _groups(comparison)
    cells: dict[str, list[Cell]] = {label: [] for label in comparison.labels}
    for group in groups:
        own = {row["label"]: row for row in rows if text_of(list(row["by"].values())) == group}
        marks = dict(zip(own, column.marks(list(own.values())), strict=True))
        for label, line in cells.items():
            line.append(Cell(column.show(own[label]), marks[label]) if label in own else Cell(UNDEFINED))
    return Sheet(
        ("System", *groups.values()),
        tuple((Cell(label), *line) for label, line in cells.items()),
        notes=(*protocols(rows), _meaning(column), *without(rows), *_seeds(comparison)),
    )


def tests_sheet(comparison: Comparison) -> Sheet:
    """Each system against the reference, and the average ranks."""
    ranks = comparison.ranks

    def rank(label: str) -> list[Cell]:
        return [] if ranks is None else [Cell(f"{ranks.average[label]:.2f}")]

    lines = {comparison.reference: [Cell("reference"), *(Cell("") for _ in range(7))]}
    lines |= {each.label: _test_cells(each, comparison.measure.name) for each in comparison.tests}
    return Sheet(
        (
            "System",
            "Pairs",
            "Better",
            "Equal",
            "Worse",
            "Difference",
            "Effect",
            "p",
            "p\n(Holm)",
            *(["Rank"] * bool(ranks)),
        ),
        tuple((Cell(label), *lines[label], *rank(label)) for label in comparison.labels),
        f"Against {comparison.reference}, by {comparison.measure.name}",
        tuple(_test_notes(comparison)),
    )


def pairs_sheet(comparison: Comparison) -> Sheet:
    """How often the system of a row is better than, equal to and worse than that of a column."""
    labels = comparison.labels

    def cell(own: str, other: str) -> Cell:
        if (own, other) in comparison.pairwise:
            test = comparison.pairwise[own, other]
            return Cell(f"{test.wins}/{test.ties}/{test.losses}")
        if (other, own) in comparison.pairwise:
            test = comparison.pairwise[other, own]
            return Cell(f"{test.losses}/{test.ties}/{test.wins}")
        return Cell("" if own == other else UNDEFINED)

    numbers = {label: str(number) for number, label in enumerate(labels, 1)}  # names would be too wide for columns
    return Sheet(
        ("System", *numbers.values()),
        tuple((Cell(f"{numbers[own]} {own}"), *(cell(own, other) for other in labels)) for own in labels),
        f"Better/equal/worse than the system of the column, by {comparison.measure.name}",
    )


def comma_separated(comparison: Comparison) -> str:
    """The rows in full precision as CSV, each with its test against the reference and its average rank."""
    numbers = [key for column in columns(metric_of_rows(comparison.rows)) for key in column.keys]
    tests = {told["system"]: told for told in comparison.as_dict()["tests"]}
    fields = ("pairs", "wins", "ties", "losses", "difference", "effect", "p", "p_holm")
    ranks = {} if comparison.ranks is None else comparison.ranks.average
    lines: list[dict[str, Any]] = [
        {
            "system": row["label"],
            "algorithm": row["algorithm"],
            "variant": row["variant"],
            **{key: value if isinstance(value, int | float) else text_of(value) for key, value in row["by"].items()},
            "seeds": len(row["seeds"]),
            **{key: row.get(key) for key in numbers},
            "reference": comparison.reference,
            **{field: tests.get(row["label"], {}).get(field) for field in fields},
            "average_rank": ranks.get(row["label"]),
        }
        for row in comparison.rows
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _groups(comparison: Comparison) -> dict[str, str]:
    """The headings of the groups; by size where all values are numbers, else in the order of the runs."""
    values = {text_of(list(row["by"].values())): list(row["by"].values()) for row in comparison.rows}
    plain = [value for group in values.values() for value in group]
    if all(isinstance(value, int | float) for value in plain):
        values = dict(sorted(values.items(), key=lambda item: item[1]))
    short = short_names(comparison.by)
    return {
        group: "\n".join(f"{short[key]}={text_of(value)}" for key, value in zip(comparison.by, told, strict=True))
        for group, told in values.items()
    }


def _seeds(comparison: Comparison) -> list[str]:
    """How many seeds each system has, where they do not all have as many."""
    names: dict[int, list[str]] = {}
    groups = _groups(comparison)
    for row in comparison.rows:
        group = groups[text_of(list(row["by"].values()))].replace("\n", ", ")
        names.setdefault(len(row["seeds"]), []).append(f"{row['label']} at {group}" if group else row["label"])
    if len(names) < 2:
        return []
    counts = [f"{count} for {', '.join(those)}" for count, those in names.items()]
    return [f"Seeds: {'; '.join(counts)}."]


def _test_cells(against: Against, metric: str) -> list[Cell]:
    test = against.test
    if test is None or against.p_holm is None:
        return [Cell("0"), *(Cell(UNDEFINED) for _ in range(7))]
    form = "+.1f" if metric == "gain" else "+.3g" if _is_error(metric) else "+.3f"
    counts = (test.pairs, test.wins, test.ties, test.losses)
    return [
        *(Cell(str(count)) for count in counts),
        Cell(format(test.difference, form)),
        Cell(f"{test.effect:+.2f}"),
        Cell(_p(test.p)),
        Cell(_p(against.p_holm), "best" if against.p_holm < ALPHA else ""),
    ]


def _is_error(name: str) -> bool:
    base = name.partition(":")[0]
    return base in METRICS and METRICS[base].is_error


def _p(value: float, equals: str = "") -> str:
    return "<0.001" if value < 0.001 else f"{equals}{value:.3f}"


def _test_notes(comparison: Comparison) -> list[str]:
    tests = [each.test for each in comparison.tests if each.test is not None]
    if not tests:
        return []
    exact = all(test.exact for test in tests)
    how = "exact" if exact else f"exact up to {EXACT} pairs that differ, else approximated"
    notes = [
        f"Pairs of one {comparison.measure.unit}; a positive difference or effect (rank-biserial) is in the system's "
        "favour.",
        f"p: Wilcoxon signed-rank test, two-sided, {how}; Holm over {len(tests)} test{'s' * (len(tests) > 1)}, bold "
        f"below {ALPHA:g}.",
    ]
    ranks = comparison.ranks
    if ranks is None:
        return notes
    groups = "; ".join(", ".join(clique) for clique in ranks.cliques)
    alike = f"not told apart: {groups}." if groups else "all are told apart."
    return [
        *notes,
        f"Average ranks over {ranks.blocks} blocks: Friedman χ² = {ranks.statistic:.2f}, p {_p(ranks.p, '= ')}; "
        f"critical difference (Nemenyi, {ranks.alpha:g}) {ranks.critical_difference:.2f}; {alike}",
    ]
