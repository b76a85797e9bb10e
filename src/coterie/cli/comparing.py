"""The command that compares runs."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from coterie.cli.arguments import AsJson, Debug
from coterie.cli.printing import friendly, json_text, print_json, standard_output
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.reports import Comparison

SUFFIXES = {".txt": "table", ".csv": "csv", ".md": "markdown", ".tex": "latex", ".json": "json"}
"""The format of a file where nobody says which."""


class Format(StrEnum):
    """How a comparison is printed."""

    table = "table"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"
    json = "json"


class Protocol(StrEnum):
    """Which round is reported."""

    best_val = "best_val"
    last = "last"


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, finished or not.")],
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="KEY",
            help="A column for each value of this configuration key, e.g. federation.partition.alpha; repeatable.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Tested, and shown by --by: the runs' own (default), r_acc, r_mae, ptr, gain, worst, worst_decile, or "
            "another metric that was measured."
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The system to test the others against; default: FEDORA, else the best one.")
    ] = None,
    report: Annotated[Protocol | None, typer.Option(help="Which round is reported; default: as each run says.")] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also show how often each system beats each other one; not as CSV.")
    ] = False,
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: by the suffix of --output, else table.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs: one table, paired tests over clients and seeds, and average ranks.

    RUN is a run directory. Runs of one experiment with other seeds are pooled; runs that differ in a setting are rows
    of their own, or columns with --by.
    """
    console = standard_output()
    with friendly(debug):
        chosen = _format(form, as_json, output)
        if pairs and chosen == "csv":
            raise CoterieError(
                "--pairs is a second table, and a CSV holds one: leave it out, or choose another format."
            )
        from coterie.reports import compare as compared
        from coterie.runs.directory import refuse_results

        if output is not None:
            refuse_results(output)
        found = compared(
            runs, by=by or [], metric=metric, reference=reference, report=None if report is None else report.value
        )
        if output is not None:
            _write(output, _text(found, chosen, pairs))
            console.print(f"The comparison is in {escape(str(output))}", highlight=False, soft_wrap=True)
        elif chosen == "table":
            _print(console, found, pairs)
        elif chosen == "json":
            print_json(found.as_dict(pairs=pairs))
        else:
            print(_text(found, chosen, pairs), end="")


def _format(form: Format | None, as_json: bool, output: Path | None) -> str:
    if as_json and form not in (None, Format.json):
        raise CoterieError(f"--json and --format {form} contradict each other: give one of them.")
    stated = "json" if as_json else None if form is None else form.value
    if output is None:
        return stated or "table"
    named = SUFFIXES.get(output.suffix)
    if stated is None:
        if named is None:
            raise CoterieError(
                f"--output {output}: its suffix names no format; add --format, or end it in {', '.join(SUFFIXES)}."
            )
        return named
    if named not in (None, "table", stated):  # .txt may hold any of them
        option = "--json" if as_json else f"--format {stated}"
        raise CoterieError(f"{option} and --output {output} contradict each other: give one of them.")
    return stated


def _print(console: Console, found: Comparison, pairs: bool) -> None:
    from coterie.reports.sheets import sheets
    from coterie.runs.table import terminal

    for number, sheet in enumerate(sheets(found, pairs=pairs)):
        if number:
            console.print()
        console.print(terminal(sheet))
    for note in found.notes:
        console.print(f"[bold yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def _text(found: Comparison, form: str, pairs: bool) -> str:
    """The comparison as the text of a file."""
    from coterie.reports.sheets import comma_separated, sheets
    from coterie.runs.formats import latex, markdown

    if form == "json":
        return json_text(found.as_dict(pairs=pairs))
    if form == "csv":
        return comma_separated(found)
    if form == "table":
        console = Console(width=120, color_system=None, emoji=False)
        with console.capture() as captured:
            _print(console, found, pairs)
        return captured.get()
    each: Callable[..., str] = markdown if form == "markdown" else latex
    comment = "> {}\n" if form == "markdown" else "% {}\n"
    tables = "\n".join(each(sheet) for sheet in sheets(found, pairs=pairs))
    return tables + ("\n" if found.notes else "") + "".join(comment.format(note) for note in found.notes)


def _write(path: Path, text: str) -> None:
    from coterie.runs.atomic import write_text

    if not path.parent.is_dir():
        raise CoterieError(f"--output {path}: there is no folder {path.parent}.")
    write_text(path, text)
