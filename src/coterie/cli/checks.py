"""The command that puts a method to the test."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from coterie.cli.arguments import AsJson, Debug
from coterie.cli.printing import friendly, standard_output
from coterie.errors import CoterieError

_SIGNS = {
    "holds": "[green]ok[/]",
    "broken": "[bold red]BROKEN[/]",
    "exempt": "[yellow]exempt[/]",
    "unclaimed": "[dim]not claimed[/]",
}


def check(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD...", help="Registered names, or module:Class for your own; or use --all."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every registered method.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="IDENTITY", help="Ask this question only; repeatable.")
    ] = None,
    identities: Annotated[bool, typer.Option("--list", help="List the identities with their questions.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print what is broken only.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Put methods to the test: is each what it claims to be?

    Every method must keep some two dozen identities (a client alone is plain SGD, relabelling clients changes nothing,
    every option matters, bytes are those of the definition, ...), and those that it claims itself. Exit code 1 where
    one is broken. [bold]coterie check mymodule:MyMethod[/] takes seconds.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.contract import available_algorithms
        from coterie.testing import IDENTITIES, findings_of
        from coterie.testing.check import question

        if identities:
            if methods or everything or only:
                raise CoterieError("--list prints what all methods are asked: leave out METHOD, --all and --only.")
            _list(console, {name: question(name) for name in IDENTITIES}, as_json)
            return
        names = dict.fromkeys([*(methods or []), *(available_algorithms() if everything else [])])
        if not names:
            raise CoterieError("coterie check takes names of methods, or --all; --list prints what is asked.")
        findings = []
        for name in names:

            def show(finding: Any) -> None:
                if finding.verdict == "broken" or not quiet:
                    _show(console, finding)

            findings += findings_of(name, only=only, report=None if as_json else show)
        broken = [finding for finding in findings if finding.verdict == "broken"]
        if as_json:  # tracebacks included
            print(json.dumps([asdict(finding) for finding in (broken if quiet else findings)], indent=2))
        else:
            if debug:
                for finding in broken:
                    console.print(finding.traceback, markup=False, highlight=False)
            count = len({finding.method for finding in findings})
            unclaimed = sum(finding.verdict == "unclaimed" for finding in findings)
            asked = f", {unclaimed} of them about what is not claimed" if unclaimed else ""
            console.print(
                f"{len(findings)} questions to {count} method{'s' if count > 1 else ''}{asked}: "
                + (f"[bold red]{len(broken)} broken[/]" if broken else "[green]all hold[/]"),
                highlight=False,
            )
        if broken:
            raise typer.Exit(1)


def _list(console: Console, questions: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(questions, indent=2))
        return
    for name, text in questions.items():
        console.print(f"[bold]{name:20}[/] {escape(text)}", highlight=False)


def _show(console: Console, finding: Any) -> None:
    if finding.verdict == "broken":
        first, *rest = str(finding).splitlines()
        console.print(f"{_SIGNS['broken']} {escape(first)}", highlight=False)
        for line in rest:
            console.print(escape(line), highlight=False)
        return
    reason = f": {finding.reason}" if finding.reason else ""
    console.print(
        f"{_SIGNS[finding.verdict]} {escape(f'{finding.method}: {finding.identity}{reason}')}"
        f"  [dim]{finding.seconds:.1f} s[/]",
        highlight=False,
    )
